package secret

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// ErrNotRegular is the error of ReadFile for a folder, a pipe or a device.
var ErrNotRegular = errors.New("it is not a regular file")

// ReadFile returns at most the first limit bytes of a file that holds secrets, and the file's permissions. Its errors
// do not contain the path.
func ReadFile(path string, limit int64) (raw []byte, mode fs.FileMode, err error) {
	defer func() {
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			err = p.Err
		}
	}()
	info, err := os.Stat(path) // before opening, because opening a FIFO waits for a writer
	switch {
	case err != nil:
		return nil, 0, err
	case !info.Mode().IsRegular():
		return nil, 0, ErrNotRegular
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = f.Close() }()
	if info, err = f.Stat(); err != nil {
		return nil, 0, err
	}
	raw, err = io.ReadAll(io.LimitReader(f, limit))
	return raw, info.Mode().Perm(), err
}
