package servers

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/strictjson"
	"github.com/agentherald/herald/internal/erc8004"
)

// Bounds of the file. Legitimate files stay far below them.
const (
	maxFile    = 1 << 20 // bytes
	maxDepth   = 8       // more than servers, server, headers and value need
	maxServers = 10000
	maxFaults  = 20 // reported at once
)

// File is the content of one version of the file. It is immutable.
type File struct{ servers map[Key]Server }

// Lookup returns the entry of an agent (decimal id).
func (f *File) Lookup(chainID uint64, agentID string) (Server, bool) {
	s, ok := f.servers[Key{chainID, agentID}]
	return s, ok
}

// Keys returns the agents in the file, sorted.
func (f *File) Keys() []Key { return sortKeys(f.servers) }

// Load reads the file. env returns the value of a variable ${NAME}, where an empty value counts as not set; nil means
// os.LookupEnv. A line end after a value is ignored, as in settings. If the file has errors, Load returns all of them
// as *Error, joined by errors.Join, and no File.
func Load(path string, env func(string) (string, bool)) (*File, error) {
	raw, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return parseAll(path, raw, env)
}

// Find returns the entry of one agent (decimal id), or false if the file has none. It returns the errors that Load
// would return, except those within the entries of other agents, which may contain variables that only the worker's
// environment has.
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

// readFile reads the file. It rejects files that are too long, are not regular files, or are accessible to other users.
func readFile(path string) ([]byte, error) {
	raw, info, err := secret.ReadFile(path, maxFile+1)
	switch {
	case errors.Is(err, secret.ErrNotRegular):
		return nil, &Error{File: path, Problem: "is no file"}
	case err != nil:
		return nil, &Error{File: path, Problem: "cannot be read: " + err.Error()}
	case isOpen(info, os.Geteuid()):
		return nil, &Error{File: path, Problem: fmt.Sprintf("is open to others than its owner (mode %#o), and it "+
			"may hold secrets and names "+
			"commands: run chmod 600 on it", info.Mode().Perm())}
	case len(raw) > maxFile:
		return nil, &Error{File: path, Problem: fmt.Sprintf("is longer than %d bytes", maxFile)}
	}
	return raw, nil
}

// isOpen reports whether others than its owner can access the file. self is the worker's user. If the worker is not
// root and root owns the file, the file's group may read it, because Kubernetes (fsGroup) and systemd (LoadCredential)
// provide such files.
func isOpen(file fs.FileInfo, self int) bool {
	allowed := fs.FileMode(0o700)
	if stat, ok := file.Sys().(*syscall.Stat_t); ok && stat.Uid == 0 && self != 0 {
		allowed = 0o740
	}
	return file.Mode().Perm()&^allowed != 0
}

// Error is one error in the file.
type Error struct {
	File    string
	Line    int    // 1-based; 0: the whole file
	Path    string // such as servers["8453:42"].url; empty: the whole file
	Problem string // the error and its correction; contains no value
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

// parser collects all errors, so that they can be reported together.
type parser struct {
	file   string
	raw    []byte
	env    func(string) (string, bool)
	faults []error
	full   bool            // maxFaults errors were found
	used   []secret.Secret // values of the variables in the current entry
}

// lookUp returns the value of a variable and records it in p.used.
func (p *parser) lookUp(name string) (string, bool) {
	v, ok := p.env(name)
	if v = strings.TrimRight(v, "\r\n"); ok && v != "" {
		p.used = append(p.used, secret.New(v))
	}
	return v, ok
}

func parseAll(file string, raw []byte, env func(string) (string, bool)) (*File, error) {
	return parseOnly(file, raw, env, func(Key) bool { return true })
}

// parseOnly parses the file but skips the entries of agents that are not wanted.
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

// parseKey parses CHAIN:AGENT.
func parseKey(s string) (k Key, problem string) {
	a, ok := erc8004.ParseAgent(s)
	if !ok || a.ChainID == 0 || a.String() != s {
		return k, "is not CHAIN:AGENT, as in 8453:42"
	}
	if n, ok := new(big.Int).SetString(a.ID, 10); !ok || n.BitLen() > 256 {
		return k, "names an agent whose number is over 256 bits"
	}
	return Key{a.ChainID, a.ID}, ""
}

// lineOf returns the line of an offset, 1-based.
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
