package mcpcall

import (
	"cmp"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/mcpcall/transport"
)

// Config configures a Pool. Zero values select the defaults.
type Config struct {
	// Guard checks and makes all connections to HTTP endpoints. Required.
	Guard *netguard.Guard
	// Signer signs each HTTP request to an agent, including event streams and notifications. Default: requests are not
	// signed.
	Signer transport.Signer
	// MaxAnswerBytes is the largest size of an answer: a JSON body, all events in answer to one request, one event of
	// an HTTP+SSE stream, or one line of a command's output. A larger answer is a *TooLargeError. Default 1 MiB.
	MaxAnswerBytes int64
	// MaxRequestBytes is the largest size of the arguments of a call, as JSON. Larger arguments are a
	// *RequestTooLargeError. Default 8 MiB.
	MaxRequestBytes int
	// OpenTimeout bounds connecting and the handshake together. Default 10 s.
	OpenTimeout time.Duration
	// ProbeTimeout bounds the wait for the answer to server/discover, a request that agents of older MCP revisions may
	// ignore. Default 2 s. It is at most half of OpenTimeout, so that time remains for the older handshake.
	ProbeTimeout time.Duration
	// CallTimeout bounds a call of Tools or Call whose context has no deadline. Default 30 s.
	CallTimeout time.Duration
	// IdleTimeout is the time after its last use at which a client is closed. Default 5 min.
	IdleTimeout time.Duration
	// RelistAfter is the age up to which Tools with fresh returns the cached tool list. So many deliveries that look
	// for a missing tool cause few tools/list requests. Default 1 s.
	RelistAfter time.Duration
	// MaxClients is the largest number of clients. A new client replaces the least recently used idle one. If all are
	// in use, Tools and Call return ErrBusy. It also is the largest number of idle HTTP connections. Default 1,024.
	MaxClients int
	// MaxHeldBytes is the largest size of the data from agents that all idle clients together keep in memory: tool
	// lists, schemas compiled from them, and incomplete events. If it is exceeded, the pool closes the least recently
	// used idle clients. Default 64 MiB.
	MaxHeldBytes int64
	// StdioCommands (HERALD_STDIO_COMMANDS) lists the commands that may be run, each with all its arguments. Default:
	// none.
	StdioCommands [][]string
	// MaxAge is the age at which a command's process is replaced. Calls in flight finish on the old process; later
	// calls use a new one. Default 24 h.
	MaxAge time.Duration
	// PingAfter is the time after its last use at which the pool checks whether a client with state (a process, an
	// event stream or a session) still works. A client that fails the check is replaced. Default 1 min.
	PingAfter time.Duration
	// Decoding bounds the bytes that the whole process decodes at the same time. Default: no bound.
	Decoding *decode.Budget
	// StdioEnv ("NAME=value") is the environment of every command, in addition to Endpoint.Env. Default: PATH, HOME and
	// LANG of this process.
	StdioEnv []string
	// Supervised states that the program calls RunSupervisor at the beginning of main. Each command then runs under a
	// supervisor process, which kills all descendants of the command when the command or this process ends. Otherwise,
	// and on systems other than Linux, only the command and its process group are killed.
	Supervised bool
	// Logger discards by default. Clock, by default time.Now, determines the age and the idle time of clients.
	// Deadlines come from contexts.
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
