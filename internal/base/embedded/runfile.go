package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// runName is the file in a data folder with which commands find the running worker.
const runName = "run.json"

// RunFile is the content of run.json. Its URLs are those of embedded services and may contain a password of this run,
// so the file has mode 0600. It never contains an operator's own URL, whose password may open more.
type RunFile struct {
	PID         int    `json:"pid"`
	DatabaseURL string `json:"databaseUrl"`        // empty: not embedded
	RedisURL    string `json:"redisUrl"`           // empty: not embedded
	Database    string `json:"database,omitempty"` // identifies a database that is not embedded, without its password
	Listen      string `json:"listen"`             // host:port of the HTTP server; empty if there is none
}

// StaleRunFileError reports that run.json was left by a process that is gone. It can be ignored and overwritten.
type StaleRunFileError struct {
	Path string
	PID  int
}

func (e *StaleRunFileError) Error() string {
	return fmt.Sprintf("%s was left by process %d, which no longer runs", e.Path, e.PID)
}

// WriteRunFile publishes the addresses of this process. The process must hold the folder's lock (LockDir).
func WriteRunFile(dir string, r RunFile) error {
	if r.PID <= 0 {
		return errors.New("run.json: a process id is needed")
	}
	content, err := json.Marshal(r)
	if err == nil {
		err = writeAtomic(filepath.Join(dir, runName), 0o600, content)
	}
	if err != nil {
		return fmt.Errorf("write run.json: %w", err)
	}
	return nil
}

// ReadRunFile returns the addresses of the worker that runs on the folder. It returns fs.ErrNotExist if no worker was
// started there or the last one stopped properly, and *StaleRunFileError if the last one was killed. It recognizes a
// process id that another program has got since then by the folder's lock, which that program does not hold.
func ReadRunFile(dir string) (RunFile, error) {
	path := filepath.Join(dir, runName)
	b, err := readSmall(path)
	if err != nil {
		return RunFile{}, fmt.Errorf("read run.json: %w", err)
	}
	var r RunFile
	if err := json.Unmarshal(b, &r); err != nil || r.PID <= 0 {
		return RunFile{}, fmt.Errorf("%s was not written by a worker: remove it", path)
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
