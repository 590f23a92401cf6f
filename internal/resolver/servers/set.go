package servers

import (
	"cmp"
	"log/slog"

	"github.com/agentherald/herald/internal/base/reload"
)

// Config configures a Set.
type Config struct {
	Path   string
	Env    func(string) (string, bool) // returns values for ${NAME}; default os.LookupEnv
	Logger *slog.Logger                // default slog.Default
	// Changed is called with each change after it came into force; nil: it is not called. Calls do not overlap, and the
	// next check waits for the call.
	Changed func(Diff)
}

// Set holds the servers file in force. It is safe for concurrent use. The zero Set contains no agent.
type Set struct{ *reload.File[*File] }

// Open reads the file. It returns an error for an invalid file, because there is no earlier version that could stay in
// force.
func Open(cfg Config) (*Set, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	f, err := reload.Open(reload.Config[*File]{Name: "servers file", Path: cfg.Path, Read: readFile,
		Logger: cfg.Logger,
		Parse: func(raw []byte, _ func(string) ([]byte, error)) (*File, error) {
			return parseAll(cfg.Path, raw, cfg.Env)
		},
		Changed: func(before, after *File) bool {
			return cfg.reportChange(compareFiles(before.servers, after.servers), after)
		}})
	if err != nil {
		return nil, err
	}
	cfg.Logger.Info("read the servers file", "file", cfg.Path, "servers", len(f.Get().servers))
	return &Set{f}, nil
}

// reportChange logs a change and calls Changed. It returns false for an empty one. The new file is in force even then,
// because the values to mask may differ.
func (c Config) reportChange(d Diff, f *File) bool {
	if d.Empty() {
		return false
	}
	c.Logger.Info("the servers file changed", "file", c.Path, "servers", len(f.servers),
		"added", formatChanges(d.Added), "removed", formatChanges(d.Removed), "changed", formatChanges(d.Changed))
	if c.Changed != nil {
		c.Changed(d)
	}
	return true
}

// Lookup returns the entry of an agent (decimal id) in the file in force. It takes no lock.
func (s *Set) Lookup(chainID uint64, agentID string) (Server, bool) {
	return s.Content().Lookup(chainID, agentID)
}

// Content returns the file in force.
func (s *Set) Content() *File {
	return cmp.Or(s.Get(), &File{})
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
