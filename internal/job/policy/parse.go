package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/base/strictjson"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// ReadFile reads a policy file, or a file of clients. It refuses a file of more than MaxFileBytes.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err == nil && len(raw) > MaxFileBytes {
		err = fmt.Errorf("%s is longer than %d bytes", path, MaxFileBytes)
	}
	return raw, err
}

// Load reads and parses the operator's default policy. The names of files of clients are relative to its folder. read
// reads a file. The error begins with the path.
func Load(path string, raw []byte, read func(path string) ([]byte, error)) (Policy, []string, error) {
	p, warnings, err := Parse(raw, Default, func(name string) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return read(name)
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return p, warnings, err
}

// Bounds of a policy.
const (
	MaxBytes = 16 << 10 // bytes of the document, and of its canonical form
	MaxRules = 100

	MaxFileBytes = 32 << 20 // bytes of a file of clients: 780,000 addresses
)

var (
	agentForm = regexp.MustCompile(`^(?:([1-9][0-9]{0,18}):)?(0|[1-9][0-9]{0,77})$`)
	// The value of an event has at most 39 digits and 18 decimals. A limit may have more digits.
	decimalForm = regexp.MustCompile(`^-?[0-9]{1,60}(\.[0-9]{1,18})?$`)
)

// Parse parses the policy of a level. The error is a *job.Refusal with the path of the first error. A warning begins
// with the path of a condition that is valid and probably has an unintended effect.
//
// readFile returns the content of a file of clients. If it is nil, Parse refuses a policy that names a file.
func Parse(raw []byte, level Level, readFile func(name string) ([]byte, error)) (_ Policy, warnings []string, _ error) {
	if len(raw) > MaxBytes {
		return Policy{}, nil, &job.Refusal{Problem: fmt.Sprintf("is longer than %d bytes", MaxBytes)}
	}
	p := &parser{readFile: readFile}
	out := p.parsePolicy(raw, level)
	if p.err == nil && len(out.String()) > MaxBytes {
		p.err = &job.Refusal{Problem: fmt.Sprintf("is longer than %d bytes in its canonical form", MaxBytes)}
	}
	if p.err != nil {
		return Policy{}, nil, p.err
	}
	return out, p.warnings, nil
}

// parser reads a policy. Its methods may return any value for a refused one.
type parser struct {
	readFile func(name string) ([]byte, error)
	warnings []string
	err      *job.Refusal // the first
}

// refuseUnless stores an error about v unless ok is true.
func (p *parser) refuseUnless(v *strictjson.Value, ok bool, problem string, args ...any) {
	if !ok && p.err == nil {
		p.err = &job.Refusal{Path: v.Path(), Problem: fmt.Sprintf(problem, args...)}
	}
}

// readObject returns the object v. It sorts the members by name, because Postgres does not keep their order, and the
// text of a rule must not depend on it. It refuses members whose names are not in known.
func (p *parser) readObject(v *strictjson.Value, known ...string) *strictjson.Object {
	o, ok := v.Object()
	if p.refuseUnless(v, ok, "must be an object"); !ok {
		return &strictjson.Object{}
	}
	if m := o.FirstUnknown(known...); m != nil {
		p.refuseUnless(m, false, "is unknown: use one of %s", strings.Join(known, ", "))
	}
	slices.SortStableFunc(o.Members, func(a, b *strictjson.Value) int { return strings.Compare(a.Name, b.Name) })
	return o
}

func (p *parser) parsePolicy(raw []byte, level Level) (out Policy) {
	root, fault := strictjson.Parse(raw, strictjson.Options{MaxDepth: 8, MaxDigits: 80,
		Repaired: func(v *strictjson.Value) { p.refuseUnless(v, false, "contains NUL or is not UTF-8 text") }})
	if fault != nil {
		p.err = &job.Refusal{Path: fault.Path, Problem: fault.Problem}
		return out
	}
	return p.readPolicy(root, level)
}

func (p *parser) readPolicy(v *strictjson.Value, level Level) (out Policy) {
	known := []string{"enabled", "maxPerSecond", "batchSize", "pauseUntil", "filters"}
	if level != Own {
		known = append(known, "onUnknown", "order")
	}
	o := p.readObject(v, known...)
	for _, s := range []struct {
		name  string
		into  any
		valid func() bool
		form  string
	}{
		{"enabled", &out.Enabled, func() bool { return true }, "true or false"},
		{"onUnknown", &out.OnUnknown, func() bool {
			return out.OnUnknown == OnUnknownResend || out.OnUnknown == OnUnknownHold
		}, "resend or hold"},
		{"order", &out.Order, func() bool { return out.Order == OrderStrict || out.Order == OrderOff },
			"strict or off"},
		{"maxPerSecond", &out.MaxPerSecond, func() bool { return out.MaxPerSecond >= 0.01 && out.MaxPerSecond <= 1e4 },
			"a number from 0.01 to 10000"},
		{"batchSize", &out.BatchSize, func() bool { return out.BatchSize >= 1 && out.BatchSize <= 1000 },
			"a whole number from 1 to 1000"},
		{"pauseUntil", &out.PauseUntil, func() bool {
			out.PauseUntil = out.PauseUntil.UTC()
			return out.PauseUntil.Year() >= 2000 && out.PauseUntil.Year() <= 9999
		}, "a time such as 2030-12-31T18:00:00Z"},
	} {
		if m := o.Get(s.name); m != nil {
			ok := m.Data != nil && json.Unmarshal(m.Encode(), s.into) == nil && s.valid()
			p.refuseUnless(m, ok, "must be %s", s.form)
		}
	}
	if m := o.Get("filters"); m != nil {
		list, ok := m.Data.([]*strictjson.Value)
		p.refuseUnless(m, ok && len(list) <= MaxRules, "must be a list of at most %d rules", MaxRules)
		for _, e := range list[:min(len(list), MaxRules)] {
			out.Filters = append(out.Filters, p.readRule(e))
		}
	}
	return out
}

func (p *parser) readRule(v *strictjson.Value) (r Rule) {
	o := p.readObject(v, "action", "when")
	defer func() { r.text = string(v.Encode()) }() // after its objects were sorted
	if action := o.Get("action"); action != nil {
		r.Skip = p.readChoice(action, "deliver", "skip") == "skip"
	} else {
		p.refuseUnless(v, false, "has no action: set deliver or skip")
	}
	when := o.Get("when")
	if when == nil {
		return r
	}
	o = p.readObject(when, "kind", "chain", "agent", "client", "tag1", "tag2", "min", "max", "file")
	r.followUps = o.Get("kind") != nil && o.FirstUnknown("kind", "chain", "agent", "client") == nil
	for _, m := range o.Members {
		list, ok := m.Data.([]*strictjson.Value)
		if !ok {
			list = []*strictjson.Value{m}
		}
		p.refuseUnless(m, len(list) > 0, "is an empty list, which no event matches")
		c := condition{m.Name, make([]func(*Event) bool, len(list))}
		for i, e := range list {
			c.alternatives[i] = p.readCondition(m.Name, e)
		}
		r.conditions = append(r.conditions, c)
	}
	if (o.Get("min") != nil || o.Get("max") != nil) && o.Get("tag1") == nil && o.Get("tag2") == nil {
		p.warnings = append(p.warnings, when.Path()+": compares all tags' values, which have no common unit: add a tag")
	}
	return r
}

// readText returns a string, or the text of a number. It returns "" for other values.
func readText(v *strictjson.Value) string {
	if n, ok := v.Data.(json.Number); ok {
		return n.String()
	}
	s, _ := v.Data.(string)
	return s
}

func (p *parser) readChoice(v *strictjson.Value, choices ...string) string {
	p.refuseUnless(v, slices.Contains(choices, readText(v)), "must be one of %s", strings.Join(choices, ", "))
	return readText(v)
}

// readCondition reads one value of a member of "when".
func (p *parser) readCondition(name string, v *strictjson.Value) func(*Event) bool {
	text := readText(v)
	switch name {
	case "kind":
		p.readChoice(v, "NewFeedback", "FeedbackRevoked", "ResponseAppended", "ValidationResponse")
		return func(e *Event) bool { return string(e.Kind) == text }
	case "chain":
		id, err := strconv.ParseUint(text, 10, 63)
		p.refuseUnless(v, err == nil && id > 0, "must be the number of a chain")
		return func(e *Event) bool { return e.Chain == id }
	case "agent":
		parts := agentForm.FindStringSubmatch(text)
		p.refuseUnless(v, parts != nil, "must be AGENT or CHAIN:AGENT, as in 8453:42")
		return func(e *Event) bool {
			return parts[2] == e.Agent && (parts[1] == "" || parts[1] == strconv.FormatUint(e.Chain, 10))
		}
	case "client":
		clients := p.readClients(v)
		return func(e *Event) bool { return clients[e.Client] }
	case "min", "max":
		p.refuseUnless(v, decimalForm.MatchString(text), "must be a decimal number without an exponent")
		limit, _ := new(big.Rat).SetString(text)
		return func(e *Event) bool {
			if e.Value == nil {
				return false
			}
			unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(e.Decimals)), nil)
			c := new(big.Rat).SetFrac(e.Value, unit).Cmp(limit)
			return c == 0 || c > 0 == (name == "min")
		}
	case "file":
		want, ok := v.Data.(bool)
		p.refuseUnless(v, ok, "must be true or false")
		return func(e *Event) bool { return e.HasFile == want }
	}
	_, ok := v.Data.(string)
	text = cleanTag(text)
	prefix, isPrefix := strings.CutSuffix(text, "*")
	p.refuseUnless(v, ok && !strings.Contains(prefix, "*"), `must be a tag, a prefix as in "miner-*", or "" for no tag`)
	return func(e *Event) bool {
		tag := e.Tag1
		if name == "tag2" {
			tag = e.Tag2
		}
		return tag == text || isPrefix && strings.HasPrefix(tag, prefix)
	}
}

// readClients reads an address, or {"file": NAME} of a file with one address per line.
func (p *parser) readClients(v *strictjson.Value) map[common.Address]bool {
	clients, lines := map[common.Address]bool{}, [][]byte{[]byte(readText(v))}
	if _, ok := v.Object(); ok {
		name := p.readObject(v, "file").Get("file")
		p.refuseUnless(v, name != nil, "must be an address or {\"file\": NAME}")
		p.refuseUnless(v, p.readFile != nil, "names a file: only the operator's policy file can")
		if p.err != nil {
			return nil
		}
		raw, err := p.readFile(readText(name))
		p.refuseUnless(name, err == nil, "cannot be read: %v", err)
		lines = bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	}
	for i, line := range lines {
		address, problem := erc8004.ParseAddress(string(bytes.TrimSpace(line)))
		p.refuseUnless(v, problem == "", "%s (line %d)", problem, i+1)
		clients[address] = true
	}
	return clients
}
