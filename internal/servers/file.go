package servers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/strictjson"
)

// Bounds of the file. An honest one is far below them.
const (
	maxFile    = 1 << 20 // bytes
	maxDepth   = 8       // servers, one server, its headers, a value, and more than that
	maxServers = 10000
	maxFaults  = 20 // that are told at once
)

// File is one state of the file. It is never changed.
type File struct{ servers map[Key]Server }

// Lookup finds what the file says about an agent (decimal id).
func (f *File) Lookup(chainID uint64, agentID string) (Server, bool) {
	s, ok := f.servers[Key{chainID, agentID}]
	return s, ok
}

// Keys are the agents that the file names, in order.
func (f *File) Keys() []Key { return sortKeys(f.servers) }

// Load reads the file. env gives the values for ${NAME} (nil: os.LookupEnv); an empty one counts as not set. What is
// wrong with the file is told as *Error, several joined by errors.Join; one is enough for the file not to be used.
func Load(path string, env func(string) (string, bool)) (*File, error) {
	raw, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return parseAll(path, raw, env)
}

// Find reads what the file says about one agent (decimal id); false: nothing. It fails like Load, but not for what is
// wrong within other agents' entries: these may name variables that only the worker has.
func Find(path string, env func(string) (string, bool), chainID uint64, agentID string) (Server, bool, error) {
	raw, err := readFile(path)
	if err != nil {
		return Server{}, false, err
	}
	key := Key{chainID, agentID}
	f, err := parseOnly(path, raw, env, func(k Key) bool { return k == key })
	if err != nil {
		return Server{}, false, err
	}
	s, ok := f.Lookup(chainID, agentID)
	return s, ok, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, &Error{File: path, Problem: "cannot be read: " + explainFileError(err)}
	case !info.Mode().IsRegular():
		return nil, &Error{File: path, Problem: "is no file"} // a pipe would be waited for
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, &Error{File: path, Problem: "cannot be read: " + explainFileError(err)}
	}
	defer func() { _ = f.Close() }()
	switch info, err = f.Stat(); {
	case err != nil:
		return nil, &Error{File: path, Problem: "cannot be read: " + explainFileError(err)}
	case info.Mode().Perm()&0o077 != 0: // as a keyset; who may write it decides which commands the worker runs
		return nil, &Error{File: path, Problem: fmt.Sprintf("is open to others than its owner (mode %#o), and it "+
			"may hold secrets and names "+
			"commands: run chmod 600 on it", info.Mode().Perm())}
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, &Error{File: path, Problem: "cannot be read: " + explainFileError(err)}
	case len(raw) > maxFile:
		return nil, &Error{File: path, Problem: fmt.Sprintf("is longer than %d bytes", maxFile)}
	}
	return raw, nil
}

// explainFileError is a file error without the path, which the *Error names.
func explainFileError(err error) string {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// Error is one thing that is wrong with the file.
type Error struct {
	File    string
	Line    int    // 1-based; 0: the file as a whole
	Path    string // as in servers["8453:42"].url; empty: the file as a whole
	Problem string // what is wrong and what to write; never with a value
}

func (e *Error) Error() string {
	at := e.File
	if e.Line > 0 {
		at += ":" + strconv.Itoa(e.Line)
	}
	if e.Path != "" {
		at += ": " + e.Path
	}
	return at + ": " + e.Problem
}

// parser gathers what is wrong, so that one look at the file tells it all.
type parser struct {
	file   string
	raw    []byte
	env    func(string) (string, bool)
	faults []error
	full   bool            // maxFaults were found
	used   []secret.Secret // what was put in for ${NAME} in the server that is being read
}

// lookUp looks a name up, and remembers what it stood for.
func (p *parser) lookUp(name string) (string, bool) {
	v, ok := p.env(name)
	if ok && v != "" {
		p.used = append(p.used, secret.New(v))
	}
	return v, ok
}

func parseAll(file string, raw []byte, env func(string) (string, bool)) (*File, error) {
	return parseOnly(file, raw, env, func(Key) bool { return true })
}

// parseOnly passes over the entries of agents that are not wanted.
func parseOnly(file string, raw []byte, env func(string) (string, bool), wanted func(Key) bool) (*File, error) {
	if env == nil {
		env = os.LookupEnv
	}
	if !utf8.Valid(raw) {
		return nil, &Error{File: file, Problem: "is not UTF-8 text"}
	}
	p := &parser{file: file, raw: raw, env: env}
	root, fault := strictjson.Parse(raw, strictjson.Options{MaxDepth: maxDepth})
	if fault != nil {
		return nil, &Error{File: file, Line: p.lineOf(fault.Offset), Path: fault.Path, Problem: fault.Problem}
	}
	f := &File{servers: map[Key]Server{}}
	if top := p.readObject(root, "servers"); top != nil {
		if list := top.Get("servers"); list != nil {
			p.readServers(f, list, wanted)
		} else {
			p.addFault(root, `has no "servers": {"CHAIN:AGENT": {…}}`)
		}
	}
	if len(p.faults) > 0 {
		return nil, errors.Join(p.faults...)
	}
	return f, nil
}

func (p *parser) readServers(f *File, at *strictjson.Value, wanted func(Key) bool) {
	list := p.readObject(at)
	if list == nil {
		return
	}
	if len(list.Members) > maxServers {
		p.addFault(at, "names more than %d servers", maxServers)
		return
	}
	for _, entry := range list.Members {
		key, problem := parseKey(entry.Name)
		if !wanted(key) {
			continue
		}
		if problem != "" {
			p.addFault(entry, "%s", problem)
		}
		if s, ok := p.readServer(entry); ok {
			f.servers[key] = s
		}
	}
}

// parseKey reads CHAIN:AGENT.
func parseKey(s string) (k Key, problem string) {
	const form = "is not CHAIN:AGENT, as in 8453:42"
	chain, agent, ok := strings.Cut(s, ":")
	id, err := strconv.ParseUint(chain, 10, 63)
	switch {
	case !ok || err != nil || id == 0 || strconv.FormatUint(id, 10) != chain:
		return k, form
	case agent == "" || len(agent) > 78 || strings.Trim(agent, "0123456789") != "" || agent != "0" && agent[0] == '0':
		return k, form
	}
	if n, ok := new(big.Int).SetString(agent, 10); !ok || n.BitLen() > 256 {
		return k, "names an agent whose number is over 256 bits"
	}
	return Key{id, agent}, ""
}

// lineOf is the line of an offset, 1-based.
func (p *parser) lineOf(offset int) int {
	return 1 + bytes.Count(p.raw[:min(offset, len(p.raw))], []byte("\n"))
}

func (p *parser) addFault(at *strictjson.Value, format string, args ...any) {
	switch {
	case len(p.faults) < maxFaults:
		p.faults = append(p.faults, &Error{File: p.file, Line: p.lineOf(at.End), Path: at.Path(),
			Problem: fmt.Sprintf(format, args...)})
	case !p.full:
		p.full = true
		p.faults = append(p.faults, &Error{File: p.file, Problem: "has more faults, which are not shown"})
	}
}
