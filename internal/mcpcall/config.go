package mcpcall

import (
	"cmp"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/mcpcall/transport"
	"github.com/agentherald/herald/internal/netguard"
)

// Config configures a Pool. Zero values select the defaults.
type Config struct {
	// Guard dials every HTTP endpoint. Required.
	Guard *netguard.Guard
	// Signer signs each HTTP request to an agent, including event streams and notifications. Default: requests are not
	// signed.
	Signer transport.Signer
	// MaxAnswerBytes bounds one answer: a JSON body, all events of one request, one event of an HTTP+SSE stream, or one
	// line of a command's output. A longer answer is a *TooLargeError. Default 1 MiB.
	MaxAnswerBytes int64
	// MaxRequestBytes bounds the arguments of one call; longer arguments are a *RequestTooLargeError. Default 8 MiB.
	MaxRequestBytes int
	// OpenTimeout bounds connecting and the handshake together. Default 10 s.
	OpenTimeout time.Duration
	// ProbeTimeout bounds the wait for the answer to server/discover, which agents of older revisions may ignore.
	// Default 2 s. It is at most half of OpenTimeout, so that time remains for the older handshake.
	ProbeTimeout time.Duration
	// CallTimeout bounds a call of Tools or Call whose context has no deadline. Default 30 s.
	CallTimeout time.Duration
	// IdleTimeout is how long an unused client is kept. Default 5 min.
	IdleTimeout time.Duration
	// RelistAfter is the minimum age of a tool list before Tools with fresh set lists the tools again. It keeps many
	// jobs for a missing tool from causing as many tools/list requests. Default 1 s.
	RelistAfter time.Duration
	// MaxClients bounds the clients. A new client evicts the least recently used idle one; if all are in use, Tools and
	// Call return ErrBusy. It also bounds the idle HTTP connections; an agent without one costs a handshake per call.
	// Default 1,024.
	MaxClients int
	// MaxHeldBytes bounds the data from agents that idle clients keep in memory: tool lists, schemas compiled from
	// them, and incomplete events. The pool evicts the least recently used idle clients above it. Default 64 MiB.
	MaxHeldBytes int64
	// StdioCommands (HERALD_STDIO_COMMANDS) lists the commands that may be run, each with all its arguments. Default:
	// none.
	StdioCommands [][]string
	// MaxAge is the age at which a command's process is replaced. Calls in flight finish on the old process; later
	// calls use a new one. Default 24 h.
	MaxAge time.Duration
	// PingAfter is how long a client with state (a process, an event stream or a session) may be idle before the pool
	// checks it. A client that fails the check is replaced. Default 1 min.
	PingAfter time.Duration
	// Decoding bounds how many documents the whole process decodes at the same time. Default: no bound.
	Decoding *decode.Budget
	// StdioEnv ("NAME=value") is the only part of this process's environment that a command receives. Default: PATH,
	// HOME and LANG of this process.
	StdioEnv []string
	// Supervised declares that the program calls RunSupervisor first in main, so that each command can run under a
	// supervisor. The supervisor kills all descendants of the command when the command or this process ends in any way.
	// Without it, and on systems other than Linux, only the command and its process group are killed.
	Supervised bool
	// Logger discards by default. Clock, by default time.Now, determines idleness and age; deadlines come from
	// contexts.
	Logger *slog.Logger
	Clock  func() time.Time
}

func (c Config) withDefaults() (Config, error) {
	if c.Guard == nil {
		return c, errors.New("mcpcall: Config.Guard is required")
	}
	c.MaxAnswerBytes = cmp.Or(c.MaxAnswerBytes, 1<<20)
	c.MaxRequestBytes = cmp.Or(c.MaxRequestBytes, 8<<20)
	c.OpenTimeout = cmp.Or(c.OpenTimeout, 10*time.Second)
	c.ProbeTimeout = min(cmp.Or(c.ProbeTimeout, 2*time.Second), c.OpenTimeout/2)
	c.CallTimeout = cmp.Or(c.CallTimeout, 30*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 5*time.Minute)
	c.RelistAfter = cmp.Or(c.RelistAfter, time.Second)
	c.MaxAge = cmp.Or(c.MaxAge, 24*time.Hour)
	c.PingAfter = cmp.Or(c.PingAfter, time.Minute)
	c.MaxClients = cmp.Or(c.MaxClients, 1024)
	c.MaxHeldBytes = cmp.Or(c.MaxHeldBytes, 64<<20)
	if c.StdioEnv == nil {
		for _, name := range []string{"PATH", "HOME", "LANG"} {
			if v, ok := os.LookupEnv(name); ok {
				c.StdioEnv = append(c.StdioEnv, name+"="+v)
			}
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return c, nil
}
