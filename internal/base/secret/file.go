package secret

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ErrNotRegular is the error of ReadFile for a folder, a pipe or a device.
var ErrNotRegular = errors.New("it is not a regular file")

// ReadFile returns at most the first limit bytes of a file that holds secrets, and describes the file. Its errors do
// not contain the path.
func ReadFile(path string, limit int64) (raw []byte, info fs.FileInfo, err error) {
	defer func() {
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			err = p.Err
		}
	}()
	info, err = os.Stat(path) // before opening, because opening a FIFO waits for a writer
	switch {
	case err != nil:
		return nil, nil, err
	case !info.Mode().IsRegular():
		return nil, nil, ErrNotRegular
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	if info, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	raw, err = io.ReadAll(io.LimitReader(f, limit))
	return raw, info, err
}

// LoadOrCreateFile reads a keyset from a file. If there is no file, it creates one with a new keyset (mode 0600) and
// returns made=true. The keyset is wrapped if m is not nil. A file that other users can read is an error.
func LoadOrCreateFile(path string, m Master) (k *Keyset, made bool, err error) {
	k, err = LoadFile(path, m)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, false, err
	}
	if k, err = Create(); err != nil {
		return nil, false, err
	}
	text, err := k.Encode(m)
	if err == nil {
		// Link instead of rename: if two processes create the file at the same time, both must use the first one.
		err = writeFile(path, text.Reveal(), os.Link)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		k, err = LoadFile(path, m)
		return k, false, err
	case err != nil:
		return nil, false, err
	}
	return k, true, nil
}

// maxKeysetFile bounds a keyset file in bytes. It is far larger than a keyset with many keys.
const maxKeysetFile = 64 << 10

// LoadFile reads a keyset from a file as Unwrap does. A file that other users can read is an error. If there is no
// file, the error is fs.ErrNotExist.
func LoadFile(path string, m Master) (*Keyset, error) {
	raw, info, err := ReadFile(path, maxKeysetFile)
	switch {
	case errors.Is(err, ErrNotRegular):
		return nil, &KeysetError{path + " is not a file"}
	case err != nil:
		return nil, fmt.Errorf("read the keyset file %s: %w", path, err)
	case info.Mode().Perm()&0o077 != 0:
		return nil, &KeysetError{fmt.Sprintf("%s can be read by others than its owner (mode %#o): "+
			"run chmod 600 on it, and make new keys if others may have read it", path, info.Mode().Perm())}
	}
	k, err := Unwrap(New(string(raw)), m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

// ReplaceFile writes the text of a keyset to a file of mode 0600. It replaces an existing file only if it can read the
// keyset in it and from contains all keys of that keyset. from is the keyset that the new one was derived from; nil
// means that the new one has only new keys, and then no existing file is replaced. The file keeps its owner.
func ReplaceFile(path, text string, from *Keyset, m Master) error {
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
	return writeFile(path, text+"\n", os.Rename)
}

// writeFile writes text to a temporary file of mode 0600 in the same folder, and puts it at path by os.Link or
// os.Rename. It syncs both, because secrets encrypted from now on need the file, even after a power failure.
func writeFile(path, text string, put func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".keyset-*") // 0600
	if err == nil {
		defer func() { _ = os.Remove(f.Name()) }()
		_, err = f.WriteString(text)
		err = errors.Join(err, keepOwner(f, path), f.Sync(), f.Close())
	}
	if err == nil {
		err = put(f.Name(), path)
	}
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("write the keyset file %s: %w", path, err)
	}
	return nil
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
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
