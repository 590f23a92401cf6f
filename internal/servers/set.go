package servers

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// lookInterval is how often the file is looked at.
const lookInterval = 2 * time.Second

// Config makes a Set.
type Config struct {
	Path   string
	Env    func(string) (string, bool) // values for ${NAME}; default os.LookupEnv
	Logger *slog.Logger                // default slog.Default
	// Changed hears of every difference after it is in force, one at a time; nil: nobody. The next look waits for it.
	Changed func(Diff)
	// Ticks say when to look. Default: every 2 s while Run runs.
	Ticks <-chan time.Time
}

// Set is the servers file that is in force. Safe for concurrent use; the nil Set knows no agent.
type Set struct {
	cfg   Config
	force atomic.Pointer[File]

	mu      sync.Mutex // one look at a time
	seen    os.FileInfo
	settled bool              // the file was read again after its last change was noticed: a clock may be too coarse to tell two writes apart
	sum     [sha256.Size]byte // of what was read last, good or not
	fault   string            // why what is in force is not what is in the file; told once
}

// Open reads the file. One that is broken is an error here: nothing is in force yet.
func Open(cfg Config) (*Set, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Set{cfg: cfg}
	info, err := os.Stat(cfg.Path)
	if err != nil {
		return nil, &Error{File: cfg.Path, Problem: "cannot be read: " + explainFileError(err)}
	}
	raw, err := readFile(cfg.Path)
	if err != nil {
		return nil, err
	}
	f, err := parseAll(cfg.Path, raw, cfg.Env)
	if err != nil {
		return nil, err
	}
	s.seen, s.sum = info, sha256.Sum256(raw)
	s.force.Store(f)
	cfg.Logger.Info("read the servers file", "file", cfg.Path, "servers", len(f.servers))
	return s, nil
}

// Lookup finds what the file in force says about an agent (decimal id). It takes no lock.
func (s *Set) Lookup(chainID uint64, agentID string) (Server, bool) {
	if s == nil {
		return Server{}, false
	}
	return s.force.Load().Lookup(chainID, agentID)
}

// File is what is in force now.
func (s *Set) File() *File {
	if s == nil {
		return &File{}
	}
	return s.force.Load()
}

// Run looks at the file until the context ends.
func (s *Set) Run(ctx context.Context) {
	ticks := s.cfg.Ticks
	if ticks == nil {
		ticker := time.NewTicker(lookInterval)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			s.ReloadIfChanged()
		}
	}
}

// ReloadIfChanged reads the file if it may have changed: itself, or what a link to it names, as Kubernetes swaps its
// volumes. A good one comes into force; of a broken one the log says once what is wrong.
func (s *Set) ReloadIfChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Stat(s.cfg.Path)
	same := err == nil && s.seen != nil && os.SameFile(info, s.seen) && info.ModTime().Equal(s.seen.ModTime()) &&
		info.Size() == s.seen.Size()
	if same && s.settled {
		return
	}
	raw, err := readFile(s.cfg.Path)
	if err != nil {
		s.seen, s.settled = nil, false
		s.logFault(err)
		return
	}
	s.seen, s.settled = info, same
	sum := sha256.Sum256(raw)
	if sum == s.sum && s.fault == "" {
		return
	}
	f, err := parseAll(s.cfg.Path, raw, s.cfg.Env)
	s.sum = sum
	if err != nil {
		s.logFault(err)
		return
	}
	s.applyFile(f)
}

func (s *Set) logFault(err error) {
	if s.fault != err.Error() {
		s.fault = err.Error()
		s.cfg.Logger.Error("the servers file cannot be used; what it said before stays in force", "file", s.cfg.Path,
			"error", err)
	}
}

func (s *Set) applyFile(f *File) {
	d := compareFiles(s.force.Load().servers, f.servers)
	was := s.fault
	s.fault = ""
	s.force.Store(f) // also when nothing seems to differ: what is masked as a secret may
	if d.Empty() {
		if was != "" {
			s.cfg.Logger.Info("the servers file can be used again; it says what is in force", "file", s.cfg.Path)
		}
		return
	}
	s.cfg.Logger.Info("the servers file changed", "file", s.cfg.Path, "servers", len(f.servers),
		"added", formatChanges(d.Added), "removed", formatChanges(d.Removed), "changed", formatChanges(d.Changed))
	if s.cfg.Changed != nil {
		s.cfg.Changed(d)
	}
}

// maxShown is how many servers a log line names of each sort.
const maxShown = 20

func formatChanges(list []Change) []string {
	out := make([]string, 0, min(len(list), maxShown+1))
	for i, c := range list {
		if i == maxShown {
			out = append(out, "…")
			break
		}
		out = append(out, c.String())
	}
	return out
}
