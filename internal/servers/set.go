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

// lookInterval is the interval between two checks of the file.
const lookInterval = 2 * time.Second

// Config configures a Set.
type Config struct {
	Path   string
	Env    func(string) (string, bool) // returns values for ${NAME}; default os.LookupEnv
	Logger *slog.Logger                // default slog.Default
	// Changed is called with each change after it came into force; nil: it is not called. Calls do not overlap, and the
	// next check waits for the call.
	Changed func(Diff)
	// Ticks triggers the checks. Default: every 2 s during Run.
	Ticks <-chan time.Time
}

// Set holds the servers file in force. It is safe for concurrent use. A nil Set contains no agent.
type Set struct {
	cfg   Config
	force atomic.Pointer[File]

	mu   sync.Mutex // held during a check
	seen os.FileInfo
	// settled means that the file was read again after its last change. A coarse file time may not distinguish two
	// writes.
	settled bool
	sum     [sha256.Size]byte // of the last content read, valid or not
	fault   string            // the current error of the file; logged once
}

// Open reads the file. It returns an error for an invalid file, because there is no earlier version that could stay in
// force.
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

// Lookup returns the entry of an agent (decimal id) in the file in force. It takes no lock.
func (s *Set) Lookup(chainID uint64, agentID string) (Server, bool) {
	if s == nil {
		return Server{}, false
	}
	return s.force.Load().Lookup(chainID, agentID)
}

// File returns the file in force.
func (s *Set) File() *File {
	if s == nil {
		return &File{}
	}
	return s.force.Load()
}

// Run checks the file until ctx ends.
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

// ReloadIfChanged reads the file if it may have changed, or if the symbolic link at its path leads to a new
// file, as in Kubernetes volumes. A valid file comes into force. For an invalid one the error is logged once.
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
		s.cfg.Logger.Error("the servers file is invalid; its previous content stays in force", "file", s.cfg.Path,
			"error", err)
	}
}

// applyFile puts a valid file into force, logs the changes and calls Config.Changed.
func (s *Set) applyFile(f *File) {
	d := compareFiles(s.force.Load().servers, f.servers)
	was := s.fault
	s.fault = ""
	s.force.Store(f) // even without differences, because the values to mask may differ
	if d.Empty() {
		if was != "" {
			s.cfg.Logger.Info("the servers file is valid again and in force", "file", s.cfg.Path)
		}
		return
	}
	s.cfg.Logger.Info("the servers file changed", "file", s.cfg.Path, "servers", len(f.servers),
		"added", formatChanges(d.Added), "removed", formatChanges(d.Removed), "changed", formatChanges(d.Changed))
	if s.cfg.Changed != nil {
		s.cfg.Changed(d)
	}
}

// maxShown bounds the servers per list in a log line.
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
