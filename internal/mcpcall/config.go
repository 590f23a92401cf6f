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

// Config of a Pool. Zero values take the defaults.
type Config struct {
	// Guard dials every HTTP endpoint. Required.
	Guard *netguard.Guard
	// Signer signs each HTTP request to an agent, streams and notifications too. Default: nothing is signed.
	Signer transport.Signer
	// MaxAnswerBytes bounds one answer: a JSON body, all events of one request, one event of an HTTP+SSE stream, or a
	// line of a command's output. What is longer is a *TooLargeError. Default 1 MiB.
	MaxAnswerBytes int64
	// MaxRequestBytes bounds the arguments of one call; more is a *RequestTooLargeError. Default 8 MiB.
	MaxRequestBytes int
	// OpenTimeout bounds connecting and the handshake together. Default 10 s.
	OpenTimeout time.Duration
	// ProbeTimeout bounds the wait for server/discover, which agents of older revisions may ignore. Default 2 s, at
	// most half of OpenTimeout, so that there is time for the older handshake.
	ProbeTimeout time.Duration
	// CallTimeout bounds a Tools or Call whose context has no deadline. Default 30 s.
	CallTimeout time.Duration
	// IdleTimeout is how long an unused client is kept. Default 5 min.
	IdleTimeout time.Duration
	// RelistAfter is how old a list must be before Tools with fresh asks again, so that a stream of jobs for a tool
	// that does not exist does not become a stream of listings. Default 1 s.
	RelistAfter time.Duration
	// MaxClients bounds the clients; the longest unused one makes room, and when all are in use the answer is ErrBusy.
	// It bounds the idle connections too: an agent without one costs a handshake each time. Default 1,024.
	MaxClients int
	// MaxHeldBytes bounds what clients that nobody uses hold of what agents sent: tool lists, schemas compiled from
	// them, and events that have not ended. The longest unused one makes room. Default 64 MiB.
	MaxHeldBytes int64
	// StdioCommands (HERALD_STDIO_COMMANDS) are the commands that may be run, each with all its arguments. Default
	// none.
	StdioCommands [][]string
	// MaxAge is how old a command's process becomes before it is replaced: calls in flight end with the old one, the
	// next go to a new one. Default 24 h.
	MaxAge time.Duration
	// PingAfter is how long a client with something to lose (a process, an event stream, a session) is left alone
	// before it is asked whether it is still there, and replaced if not. Default 1 min.
	PingAfter time.Duration
	// Decoding bounds the documents that are decoded at a time, in the whole process. Default: not bounded.
	Decoding *decode.Budget
	// StdioEnv ("NAME=value") is all that a command sees of this process's environment. Default: its PATH, HOME and
	// LANG.
	StdioEnv []string
	// Supervised: this program calls RunSupervisor first of all, so that each command can have a supervisor, which ends
	// whatever the command started when the command or this process ends, however that was. Without it, and elsewhere
	// than on Linux, that is only the command and its process group.
	Supervised bool
	// Logger, default discards. Clock, default time.Now, decides about idleness and age; deadlines are the contexts'.
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
