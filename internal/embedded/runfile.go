package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// runName is the file in a data folder by which commands find the running worker (DESIGN §10).
const runName = "run.json"

// RunFile is what run.json says. The URLs are of embedded services alone and may hold a password made for this run,
// hence mode 0600; an operator's own may hold a password that opens more, and is in no file of ours.
type RunFile struct {
	PID         int    `json:"pid"`
	DatabaseURL string `json:"databaseUrl"`        // empty: not embedded
	RedisURL    string `json:"redisUrl"`           // empty: not embedded
	Database    string `json:"database,omitempty"` // tells which database is used that is not embedded, without its password
	Listen      string `json:"listen"`             // host:port of the HTTP server, empty when there is none
}

// StaleRunFileError means that run.json was left by a process that is gone. It can be ignored and overwritten.
type StaleRunFileError struct {
	Path string
	PID  int
}

func (e *StaleRunFileError) Error() string {
	return fmt.Sprintf("%s was left by process %d, which no longer runs", e.Path, e.PID)
}

// WriteRunFile publishes the addresses of this process, which holds the folder's lock (LockDir).
func WriteRunFile(dir string, r RunFile) error {
	if r.PID <= 0 {
		return errors.New("run.json: a process id is needed")
	}
	err := writeAtomic(filepath.Join(dir, runName), 0o600, func(w io.Writer) error {
		return json.NewEncoder(w).Encode(r)
	})
	if err != nil {
		return fmt.Errorf("write run.json: %w", err)
	}
	return nil
}

// ReadRunFile returns the addresses of the worker that runs on the folder. fs.ErrNotExist: none was started there or it
// stopped properly; *StaleRunFileError: it was killed. A process number that another program got since is recognised by
// the folder's lock, which such a program does not hold.
func ReadRunFile(dir string) (RunFile, error) {
	path := filepath.Join(dir, runName)
	b, err := readSmall(path)
	if err != nil {
		return RunFile{}, fmt.Errorf("read run.json: %w", err)
	}
	var r RunFile
	if err := json.Unmarshal(b, &r); err != nil || r.PID <= 0 {
		return RunFile{}, fmt.Errorf("%s is not what a worker writes: remove it", path)
	}
	if !isAlive(r.PID) {
		return RunFile{}, &StaleRunFileError{Path: path, PID: r.PID}
	}
	holder, held, err := lockHolder(filepath.Join(dir, lockName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return RunFile{}, fmt.Errorf("test the lock of %s: %w", dir, err)
	}
	if !held || holder != 0 && holder != r.PID {
		return RunFile{}, &StaleRunFileError{Path: path, PID: r.PID}
	}
	return r, nil
}

// RemoveRunFile removes run.json if this process wrote it; otherwise it does nothing.
func RemoveRunFile(dir string) error {
	path := filepath.Join(dir, runName)
	b, err := readSmall(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read run.json: %w", err)
	}
	var r RunFile
	if json.Unmarshal(b, &r) == nil && r.PID != os.Getpid() {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove run.json: %w", err)
	}
	return nil
}

// isAlive says whether a process of that number exists, whoever owns it. A zombie counts as gone where that can be
// told.
func isAlive(pid int) bool {
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return false
	}
	return !isZombie(pid)
}
