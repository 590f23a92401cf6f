package secret

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReplaceFile checks that a keyset file is replaced atomically, and only by a keyset that contains its keys.
func TestReplaceFile(t *testing.T) {
	t.Parallel()
	k := createKeyset(t)
	grown, _, err := k.Add()
	must(t, err)
	own, next, others := writeKeyset(t, k), writeKeyset(t, grown), writeKeyset(t, createKeyset(t))
	dir := t.TempDir()
	path, link := filepath.Join(dir, "keyset"), filepath.Join(dir, "link")
	read := func() string {
		b, err := os.ReadFile(path)
		must(t, err)
		return strings.TrimSpace(string(b))
	}
	if err := ReplaceFile(path, own.Reveal(), nil, nil); err != nil || read() != own.Reveal() {
		t.Fatal(err)
	}
	must(t, os.Symlink(path, link))
	if err := ReplaceFile(link, next.Reveal(), k, nil); err != nil || read() != next.Reveal() {
		t.Error(err)
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Error("the link was replaced")
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
		t.Error(st.Mode(), err)
	}
	for name, c := range map[string]struct {
		is   string
		mode os.FileMode
		from *Keyset
		says string
	}{
		"emptied by the shell": {"", 0o600, k, "was not replaced"},
		"no keyset":            {"hello", 0o600, k, "was not replaced"},
		"cut":                  {own.Reveal()[:40], 0o600, k, "was not replaced"},
		"open to others":       {own.Reveal(), 0o644, k, "was not replaced"},
		"another keyset":       {others.Reveal(), 0o600, k, "is not in the keyset in force"},
		"of new keys":          {own.Reveal(), 0o600, nil, "name another file"},
	} {
		must(t, errors.Join(os.WriteFile(path, []byte(c.is), c.mode), os.Chmod(path, c.mode)))
		if err := ReplaceFile(path, next.Reveal(), c.from, nil); err == nil || !strings.Contains(err.Error(), c.says) || read() != c.is {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ReplaceFile(filepath.Join(dir, "none", "keyset"), next.Reveal(), k, nil); err == nil {
		t.Error("a folder that is not there is no error")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("%v are left, %v", left, err)
	}
}
