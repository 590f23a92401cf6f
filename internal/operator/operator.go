// Package operator is everything that an operator can ask of Herald or have it do: list, show, replay and cancel
// deliveries, look at agents, rotate keys, read the audit. Below it, with the same Operator: inspect resolves and
// probes agents, tokens stores tokens and logs in for them, doctor checks what a worker needs.
//
// Each is a method or a function that takes and returns plain values, so that the commands of the worker, an HTTP API
// and pages can be skins over the same methods. Nothing here prints, reads flags or touches the process's streams:
// whoever has to be asked or warned is a Person, and what an answer is made from comes from a Backend. The sentences
// of errors name the options of the commands.
//
// Invariants: no change without its audit row; what somebody has to agree to is asked before anything is stored; no
// answer holds a secret, and what strangers wrote is made printable where it becomes part of a sentence.
package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/config"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/secret"
)

// Config is what an Operator works with.
type Config struct {
	Settings *config.Config
	Backend  Backend
	Person   Person
	Logger   *slog.Logger
	Timeout  time.Duration // how long Postgres may take to answer, and a list or a page of it to be read
	Live     Live          // of the worker that this runs in; nil: it is a command beside one
}

// Operator answers and does what an operator asks for.
type Operator struct {
	Config
	overview overviewCache
}

// New makes an Operator.
func New(c Config) *Operator {
	return &Operator{Config: c, overview: overviewCache{reading: make(chan struct{}, 1)}}
}

// Backend opens what an Operator works on. A command opens each for itself, a worker lends what it has.
type Backend interface {
	OpenStore(ctx context.Context, o StoreOptions) (*Session, error)
	// OpenContent prepares what agents are resolved with; no network is touched.
	OpenContent() (*Content, error)
	// Keyset is the keyset in force on this machine.
	Keyset() (*secret.Keyset, error)
	// Master is what wraps a keyset; nil: none is set.
	Master() (secret.Master, error)
	// DataDir is the folder of embedded services.
	DataDir() string
}

// StoreOptions say how a store is opened.
type StoreOptions struct {
	Wait  time.Duration // how long Postgres may take
	Once  bool          // a Postgres that is away is not waited for
	Queue bool          // Redis is opened too, where there is one at hand
}

// Content is what agents are resolved with, and their authorization servers are asked with.
type Content struct {
	Guard    *netguard.Guard
	Fetcher  *ipfs.Fetcher
	Resolver *resolver.Resolver
	OAuth    *oauth.Client
	HasChain func(id uint64) bool // that the chain has an RPC URL
	Close    func()
}

// Person is whoever an Operator asks and warns while it works.
type Person interface {
	// Confirm puts a question that is answered with yes or no. ErrNobody: nobody is there to be asked.
	Confirm(ctx context.Context, question string) (agreed bool, err error)
	// Notify shows a line that is no part of the answer.
	Notify(line string)
}

// ErrNobody means that nobody is there to be asked.
var ErrNobody = errors.New("nobody is here to be asked")

// MisuseError is a request that cannot be meant.
type MisuseError struct {
	Field string // the option of a command, or the parameter of the API, that is wrong; empty: no single one is
	Text  string
}

func (e *MisuseError) Error() string { return e.Text }

// NewMisuse makes a *MisuseError.
func NewMisuse(format string, args ...any) error {
	return &MisuseError{Text: fmt.Sprintf(format, args...)}
}

// misuseOf makes a *MisuseError of one option: its text begins with the option's name.
func misuseOf(option, format string, args ...any) error {
	return &MisuseError{Field: option, Text: "--" + option + " " + fmt.Sprintf(format, args...)}
}

// NotFoundError means that there is no such delivery, agent, chain or token.
type NotFoundError struct{ Text string }

func (e *NotFoundError) Error() string { return e.Text }

// LeftError means that what was asked for is done, but for some that could not be changed; each is listed with the
// reason.
type LeftError struct{ Text string }

func (e *LeftError) Error() string { return e.Text }

// Notify shows a line to the person.
func (o *Operator) Notify(format string, args ...any) { o.Person.Notify(fmt.Sprintf(format, args...)) }

// mustMarshal encodes what always can be: maps of strings, numbers and the like.
func mustMarshal(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// Disconnect ends the connection or the process of an agent.
func (o *Operator) Disconnect(ctx context.Context, pool *mcpcall.Pool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	if err := pool.Close(ctx); err != nil {
		o.Logger.Warn("the connection to the agent did not end in order", "error", err)
	}
}
