package inspect

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver/servers"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestCheckGoesByTheServersFile checks that `agent resolve --check` applies the servers file to agents whose endpoint
// it sets, as deliveries do.
func TestCheckGoesByTheServersFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "servers.json")
	content := `{"servers": {"8453:1": {"url": "https://a.example"}, "8453:2": {"url": "https://a.example", "enabled": false}, "8453:3": {"onUnknown": "hold"}}}`
	heraldtest.Must(t, os.WriteFile(path, []byte(content), 0o600))
	file, err := servers.Load(path, os.LookupEnv)
	heraldtest.Must(t, err)
	for _, c := range []struct {
		agent    string // "" means that the file has no entry
		resolved bool
		want     error
	}{
		{"1", false, nil}, {"1", true, nil}, {"2", true, ErrUndeliverable}, {"3", false, ErrUndeliverable}, {"3", true, nil},
		{"", false, ErrUndeliverable}, {"", true, nil},
	} {
		var listed *servers.Server
		if s, ok := file.Lookup(8453, c.agent); ok {
			listed = &s
		}
		r := Resolution{Resolved: c.resolved, listed: listed}
		if listed.Disables() {
			r.barred = ErrNotNow
		}
		if !c.resolved {
			r.Status = outcome.Skipped
		}
		if err := r.End(true); err != c.want {
			t.Errorf("agent %q, resolved %v: %v, want %v", c.agent, c.resolved, err, c.want)
		}
	}
	heraldtest.Fails(t, "a failure that passes", (Resolution{Outlook: Outlook{again: ErrNotNow}}).End(true), ErrNotNow)
}
