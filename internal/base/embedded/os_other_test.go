//go:build unix && !linux

package embedded

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPostmasterFile(t *testing.T) {
	for content, ok := range map[string]bool{
		"": false, "x\n": false, "-5\n": false, "1\n": false, "123\n": false,
		"123\n/data\n1770000000\n5432\n/run/herald\n\n  1 2\nready   \n": true,
	} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "postmaster.pid"), []byte(content), 0o600))
		pm, err := readPostmaster(dir)
		if (err == nil) != ok || ok && pm.pid != 123 {
			t.Errorf("%q: %v %v", content, pm, err)
		}
		if strings.Contains(content, "/run") && pm.socketDir != "/run/herald" {
			t.Errorf("%q: %v", content, pm)
		}
	}
}
