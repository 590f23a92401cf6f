package secret

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ReplaceFile writes the text of a keyset to a file of mode 0600. It syncs a temporary file in the same directory and
// renames it. It replaces an existing file only if it can read the keyset in it and from contains all keys of that
// keyset. from is the keyset that the new one was derived from; nil means that the new one has only new keys, and then
// no existing file is replaced. The file keeps its owner.
func ReplaceFile(path, text string, from *Keyset, m Master) (err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // replace the target and keep the link
	}
	old, err := LoadFile(path, m)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("%s is there and was not replaced: %w", path, err)
	case from == nil:
		return &KeysetError{fmt.Sprintf("%s holds a keyset and was not replaced: name another file", path)}
	default:
		for _, k := range old.Keys() {
			if !from.Has(k.ID) {
				return &KeysetError{fmt.Sprintf("%s was not replaced: its key %d is not in the keyset in force; "+
					"name another file, or go on from the keyset in that file", path, k.ID)}
			}
		}
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".keyset-*") // 0600
	if err != nil {
		return fmt.Errorf("write the keyset file %s: %w", path, err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.WriteString(text + "\n")
	if err = errors.Join(err, keepOwner(f, path), f.Sync(), f.Close()); err == nil {
		if err = os.Rename(f.Name(), path); err == nil {
			err = syncFolder(filepath.Dir(path))
		}
	}
	if err != nil {
		return fmt.Errorf("write the keyset file %s: %w", path, err)
	}
	return nil
}

// keepOwner sets the owner of f to that of the file at path, if it exists. root may rotate the keys of a worker that
// runs as another user.
func keepOwner(f *os.File, path string) error {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if owner, ok := st.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
		return f.Chown(int(owner.Uid), int(owner.Gid))
	}
	return nil
}
