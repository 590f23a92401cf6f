package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/text"
	"github.com/ethereum/go-ethereum/common"
)

// misuseError is a command line that cannot be meant.
type misuseError struct{ text string }

func (e *misuseError) Error() string { return e.text }

// leftError: what was asked for is done, but for some that could not be moved; each was listed with the reason.
type leftError struct{ text string }

func (e *leftError) Error() string { return e.text }

// openStore is a store with what has to be closed after it.
type openStore struct {
	*store.Store
	redis      secret.Secret // zero: none at hand
	queue      *queue.Queue
	dispatcher *delivery.Dispatcher // nil: what is handed out waits for the worker's sweep
	close      func()
}

func (a *app) store() (*openStore, error) {
	b, err := service.Attach(a.ctx, a.cfg, a.timeout, a.log)
	if err != nil {
		return nil, err
	}
	st, err := service.OpenStore(a.ctx, a.cfg, b, a.timeout, a.log)
	if err != nil {
		attached{a}.stop(b)
		return nil, err
	}
	return &openStore{Store: st, redis: b.RedisURL, close: func() { st.Close(); attached{a}.stop(b) }}, nil
}

// readStore is a store for a command that reads one list or page and ends: its reading is under --timeout, too.
func (a *app) readStore() (*openStore, error) {
	st, err := a.store()
	if err != nil {
		return nil, err
	}
	closeStore := st.close
	ctx, cancel := context.WithTimeoutCause(a.ctx, a.timeout, &operator.LateError{Within: a.timeout})
	a.ctx, st.close = ctx, func() { cancel(); closeStore() }
	return st, nil
}

// dispatching is a store whose hand-outs can be put into Redis, when there is one at hand.
func (a *app) dispatching() (*openStore, error) {
	st, err := a.store()
	if err != nil || st.redis.IsZero() {
		return st, err
	}
	if st.queue, err = queue.Open(queue.Config{URL: st.redis, Logger: a.log}); err == nil {
		st.dispatcher, err = delivery.NewDispatcher(st.queue, a.log)
	}
	if err != nil {
		st.close()
		return nil, err
	}
	closeStore := st.close
	st.close = func() { _ = st.queue.Close(); closeStore() }
	return st, nil
}

// dispatch puts tasks into Redis. A Redis that does not take one is not asked again: the sweep finds what it lacks.
func (s *openStore) dispatch(ctx context.Context, tasks []store.Task) {
	if s.dispatcher != nil && s.dispatcher.Dispatch(ctx, tasks) < len(tasks) {
		s.dispatcher = nil
	}
}

// renewals is where refresh tokens wait that Postgres could not take; nil: no Redis is at hand.
func (s *openStore) renewals() agentauth.RenewalSpool {
	if s.queue == nil {
		return nil
	}
	return s.queue
}

// parseAgent reads CHAIN:AGENT.
func parseAgent(s string) (chainID uint64, agentID string, err error) {
	chain, agent, ok := strings.Cut(s, ":")
	chainID, chainErr := strconv.ParseUint(chain, 10, 63)
	if !ok || chainErr != nil || agent == "" || strings.Trim(agent, "0123456789") != "" || len(agent) > 78 {
		return 0, "", &misuseError{fmt.Sprintf("%q is not CHAIN:AGENT, as in 8453:42", s)}
	}
	if agent = strings.TrimLeft(agent, "0"); agent == "" {
		agent = "0"
	}
	return chainID, agent, nil
}

// agent is the store's name of it.
func (c agentArg) agent(a *app) (store.Agent, error) {
	chainID, id, err := parseAgent(c.Agent)
	if err != nil {
		return store.Agent{}, err
	}
	if c.Registry != "" {
		registry, err := parseRegistry(c.Registry)
		return store.Agent{ChainID: chainID, Registry: registry, ID: id}, err
	}
	known, _ := a.cfg.Registries(chainID)
	if known.Identity == (common.Address{}) {
		return store.Agent{}, &misuseError{fmt.Sprintf("the IdentityRegistry of chain %d is not known: name it with --registry, or set IDENTITY_REGISTRY_%d", chainID, chainID)}
	}
	return store.Agent{ChainID: chainID, Registry: strings.ToLower(known.Identity.Hex()), ID: id}, nil
}

// parseRegistry takes an address; one in mixed case must carry the right checksum (EIP-55).
func parseRegistry(s string) (string, error) {
	digits, prefixed := strings.CutPrefix(s, "0x")
	mixed := digits != strings.ToLower(digits) && digits != strings.ToUpper(digits)
	if addr := common.HexToAddress(s); !prefixed || !common.IsHexAddress(s) || mixed && addr.Hex() != s {
		return "", &misuseError{fmt.Sprintf("--registry %q is not an address with the right checksum", s)}
	}
	return strings.ToLower(s), nil
}

func nameOf(g store.Agent) string {
	return fmt.Sprintf("agent %d:%s of registry %s", g.ChainID, g.ID, g.Registry)
}

const auditTimeout = 10 * time.Second

// States of an audit row.
const (
	auditDone      = "done"
	auditCancelled = "cancelled"
	auditFailed    = "failed"
)

// auditor keeps the trail of what operators change.
type auditor interface {
	BeginAudit(ctx context.Context, a store.Audit) (int64, error)
	EndAudit(ctx context.Context, id int64, moved int64, state, note string) error
}

// audited makes one change between the two halves of its audit row. No row, no change.
func audited(ctx context.Context, st auditor, a store.Audit, change func() (moved int64, err error)) (id int64, err error) {
	return auditedWithNote(ctx, st, a, func() (int64, string, error) {
		moved, err := change()
		return moved, "", err
	})
}

// auditedWithNote is audited for a change that has something to note about how it went.
func auditedWithNote(ctx context.Context, st auditor, a store.Audit, change func() (moved int64, note string, err error)) (id int64, err error) {
	if id, err = st.BeginAudit(ctx, a); err != nil {
		return 0, fmt.Errorf("nothing was changed, because the audit cannot be written: %w", err)
	}
	moved, note, err := change()
	state := auditDone
	if err != nil {
		state, note = auditFailed, strings.TrimPrefix(note+"; "+err.Error(), "; ")
		if ctx.Err() != nil {
			state = auditCancelled
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTimeout)
	defer cancel()
	if end := st.EndAudit(last, id, moved, state, note); end != nil {
		err = errors.Join(err, fmt.Errorf("audit row %d stays \"running\": %w", id, end))
	}
	return id, err
}

// asJSON encodes what always can be: maps of strings, numbers and the like.
func asJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func printable(s string) string              { return text.Printable(s) }
func short(s string) string                  { return text.Shorten(s) }
func drivesTerminal(r rune) bool             { return text.DrivesTerminal(r) }
func when(t *time.Time) string               { return formatTime(t) }
func serverWords(raw json.RawMessage) string { return describeServer(raw) }
func toolWords(raw json.RawMessage) string   { return describeTools(raw) }

// Ends of commands that look at an agent; what was found is printed by then.
var (
	errNotNow        = errors.New("could not be fetched (see above): try again later")
	errNotBefore     = errors.New("could not be fetched, and will not be before what is said above is mended")
	errUnregistered  = errors.New("not found: the registry has no such agent (see above)")
	errUndeliverable = errors.New("--check: a delivery would not be delivered (see above)")
	errUnusable      = errors.New("--check: the document cannot be used (see above)")
)

type resolveStep struct {
	What   string  `json:"step"`
	Source string  `json:"source"`
	Found  string  `json:"found"`
	TookMs float64 `json:"tookMs"`
}

// resolvedEndpoint is an endpoint without what may be secret in it.
type resolvedEndpoint struct {
	Transport    string `json:"transport"`
	Address      string `json:"address"` // a URL without query, or stdio:COMMAND without arguments
	ProtocolHint string `json:"protocolHint,omitempty"`
	From         string `json:"from"` // where in the document
	Binding      string `json:"binding,omitempty"`
}

// endOf is how a command ends that found this verdict.
func endOf(v retry.Verdict) error {
	switch {
	case v.Ending == retry.Wait:
		return errNotNow
	case v.Reason == retry.AgentNotFound:
		return errUnregistered
	}
	return nil
}

func stepsOf(t resolver.Target) []resolveStep {
	steps := []resolveStep{}
	for _, s := range t.Steps {
		steps = append(steps, resolveStep{What: s.What, Source: s.Source, Found: s.Detail, TookMs: milliseconds(s.Took)})
	}
	return steps
}

func endpointOf(t resolver.Target) *resolvedEndpoint {
	e := &resolvedEndpoint{Transport: t.Transport, Address: withoutQuery(t.URL), ProtocolHint: t.ProtocolHint, From: t.From, Binding: t.Binding}
	if t.URL == "" {
		e.Address = "stdio:" + t.Command
	}
	return e
}

func protocolWords(hint string) string {
	if hint == "" {
		return "with no protocol revision named"
	}
	return "with protocol revision " + hint + " tried first"
}

// bindingWords tell what binds an agent to its endpoint.
func bindingWords(binding string) string {
	switch binding {
	case resolver.BoundByOrigin:
		return "bound: the endpoint's own origin serves the registration document"
	case resolver.BoundByDomain:
		return "bound: the endpoint's domain names this agent"
	case resolver.Unbound:
		return "not bound: nothing on the endpoint's side names this agent; all such agents of an origin share small limits of their own"
	case resolver.BindingUnknown:
		return "not known to be bound: the endpoint's domain could not be asked just now"
	}
	return "nobody was asked whether it is bound"
}

// statusOf is what a delivery with this verdict becomes.
func statusOf(v retry.Verdict) store.Status {
	switch v.Ending {
	case retry.Skip:
		return store.Skipped
	case retry.Reject:
		return store.Rejected
	case retry.Hold:
		return store.Held
	}
	return store.Waiting
}

func endingWords(v retry.Verdict) string {
	switch v.Ending {
	case retry.Skip:
		return "is skipped"
	case retry.Reject:
		return "is rejected"
	case retry.Hold:
		return "is held"
	}
	return "waits and is tried again"
}

// withoutQuery is a URL as anybody may see it: without query, fragment and user information, and otherwise as it is written.
func withoutQuery(s string) string {
	if u, err := url.Parse(s); err == nil && u.User != nil {
		u.User = nil
		s = u.String()
	}
	if i := strings.IndexAny(s, "?#"); i >= 0 {
		return s[:i]
	}
	return s
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func tookWords(ms float64) string { return fmt.Sprintf("%.1f ms", ms) }
