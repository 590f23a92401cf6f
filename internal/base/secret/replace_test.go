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
	k, err := Create()
	must(t, err)
	grown, _, err := k.Add()
	other, err2 := Create()
	var own, next, others strings.Builder
	must(t, errors.Join(err, err2, k.Write(&own), grown.Write(&next), other.Write(&others)))
	dir := t.TempDir()
	path, link := filepath.Join(dir, "keyset"), filepath.Join(dir, "link")
	read := func() string {
		b, err := os.ReadFile(path)
		must(t, err)
		return strings.TrimSpace(string(b))
	}
	if err := ReplaceFile(path, own.String(), nil, nil); err != nil || read() != own.String() {
		t.Fatal(err)
	}
	must(t, os.Symlink(path, link))
	if err := ReplaceFile(link, next.String(), k, nil); err != nil || read() != next.String() {
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
		"cut":                  {own.String()[:40], 0o600, k, "was not replaced"},
		"open to others":       {own.String(), 0o644, k, "was not replaced"},
		"another keyset":       {others.String(), 0o600, k, "is not in the keyset in force"},
		"of new keys":          {own.String(), 0o600, nil, "name another file"},
	} {
		must(t, errors.Join(os.WriteFile(path, []byte(c.is), c.mode), os.Chmod(path, c.mode)))
		if err := ReplaceFile(path, next.String(), c.from, nil); err == nil || !strings.Contains(err.Error(), c.says) || read() != c.is {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ReplaceFile(filepath.Join(dir, "none", "keyset"), next.String(), k, nil); err == nil {
		t.Error("a folder that is not there is no error")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("%v are left, %v", left, err)
	}
}
