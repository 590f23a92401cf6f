// Package operator implements every action of an operator: list, show, replay and cancel deliveries, show agents,
// read the audit. Its subpackages use the same Operator: inspect resolves and probes agents, tokens stores tokens and
// logs in for agents, keys rotates keys, doctor checks a worker's settings and services, and report describes results
// in words.
//
// Each action is a method or a function that takes and returns plain values. The worker's commands, the HTTP API and
// the web pages all call these methods. Nothing here prints, reads flags or touches the process's streams. A Person
// answers questions and receives warnings, and a Backend opens Postgres, Redis and the chains. Error texts name the
// options of the commands. A request is also the command line of its command: its tags describe the options.
//
// Invariants: every change has an audit row; a change that needs consent asks for it before anything is stored; no
// result contains a secret; text from strangers is made printable before it becomes part of a sentence.
package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/resolver"
)

// Config holds the dependencies of an Operator.
type Config struct {
	Settings *config.Config
	Backend  Backend
	Person   Person
	Logger   *slog.Logger
	Timeout  time.Duration // bounds the wait for Postgres, and the reading of one list or page
	Live     Live          // state of the worker that contains this Operator; nil in a command
}

// Operator implements the actions of an operator.
type Operator struct {
	Config
	overview overviewCache
	shares   sync.Map // *semaphore.Weighted by the name of a caller (shareReads)
}

// New returns an Operator.
func New(c Config) *Operator { return &Operator{Config: c} }

// Backend provides the store, the content and the keyset of an Operator. A command opens each of them itself; a worker
// lends its own.
type Backend interface {
	OpenStore(ctx context.Context, o StoreOptions) (*Session, error)
	// OpenContent returns what resolving agents needs. It makes no network request.
	OpenContent() (*Content, error)
	// Keyset returns the keyset in force on this machine.
	Keyset() (*secret.Keyset, error)
	// Master returns the key that wraps keysets, or nil if none is configured.
	Master() (secret.Master, error)
	// DataDir returns the data folder of the embedded services.
	DataDir() string
}

// StoreOptions controls how a store is opened.
type StoreOptions struct {
	Wait  time.Duration // how long to wait for Postgres
	Once  bool          // do not wait for a Postgres that is unreachable
	Queue bool          // also open Redis, if one is available
}

// Content resolves agents, fetches documents and calls authorization servers.
type Content struct {
	Guard    *netguard.Guard
	Fetcher  *ipfs.Fetcher
	Resolver *resolver.Resolver
	OAuth    *oauth.Client
	HasChain func(id uint64) bool // reports whether the chain has an RPC URL
	Close    func()
}

// Person answers questions and receives warnings while an Operator works.
type Person interface {
	// Confirm asks a yes-or-no question. It returns ErrNoPerson if no person can answer.
	Confirm(ctx context.Context, question string) (agreed bool, err error)
	// Notify shows a line that is not part of the result.
	Notify(line string)
}

// ErrNoPerson is returned by Person.Confirm if no person can answer.
var ErrNoPerson = errors.New("there is no terminal to ask on")

// MisuseError reports a request that is invalid in itself.
type MisuseError struct {
	Field string // the option of a command, or the parameter of the API, that is invalid; may be empty
	Text  string
}

func (e *MisuseError) Error() string { return e.Text }

// NewMisuse returns a *MisuseError without a field.
func NewMisuse(format string, args ...any) error {
	return &MisuseError{Text: fmt.Sprintf(format, args...)}
}

// NewMisuseOf returns a *MisuseError for one option. Its text begins with the option's name.
func NewMisuseOf(option, format string, args ...any) error {
	return &MisuseError{Field: option, Text: "--" + option + " " + fmt.Sprintf(format, args...)}
}

// NotFoundError reports that the named delivery, agent, chain or token does not exist.
type NotFoundError struct{ Text string }

func (e *NotFoundError) Error() string { return e.Text }

// OverruledError reports that a file or a policy overrides the requested change, so that nothing was changed.
type OverruledError struct{ Text string }

func (e *OverruledError) Error() string { return e.Text }

// LeftError reports that an action is complete, but that some items could not be changed. The result lists each of them
// with its reason.
type LeftError struct{ Text string }

func (e *LeftError) Error() string { return e.Text }

// Notify shows a formatted line to the person.
func (o *Operator) Notify(format string, args ...any) { o.Person.Notify(fmt.Sprintf(format, args...)) }

// mustMarshal encodes values that always have a JSON form, such as maps of strings and numbers. It panics on an error.
func mustMarshal(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// Disconnect closes the connection to an agent or ends its process. It waits up to 15 seconds, even if ctx is
// cancelled.
func (o *Operator) Disconnect(ctx context.Context, pool *mcpcall.Pool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	if err := pool.Close(ctx); err != nil {
		o.Logger.Warn("the connection to the agent did not end in order", "error", err)
	}
}
