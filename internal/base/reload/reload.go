// Package reload keeps the content of a configuration file in force and reads the file again when it changes.
//
// Invariants: Get takes no lock. If the file becomes invalid, the last valid content stays in force, and each error is
// logged once.
package reload

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
)

// interval is the interval between two checks of the file.
const interval = 2 * time.Second

// Config configures a File. Changed may be nil.
type Config[T any] struct {
	Name string // of the file in log lines, such as "servers file"
	Path string
	Read func(path string) ([]byte, error) // reads the file, and the files that it names
	// Parse parses the content of the file. It reads further files with read: a change of one of them counts as a
	// change of the file.
	Parse func(raw []byte, read func(path string) ([]byte, error)) (T, error)
	// Changed is called after a new content came into force. It logs the change, and returns false if nothing changed.
	// Calls do not overlap, and the next check waits for the call.
	Changed func(before, after T) bool
	Logger  *slog.Logger
}

// File holds the content in force. It is safe for concurrent use. A nil File holds the zero value.
type File[T any] struct {
	cfg   Config[T]
	force atomic.Pointer[T]

	mu    sync.Mutex        // held during a check
	paths []string          // the files that the last check read
	sum   [sha256.Size]byte // of their content, valid or not
	fault string            // the current error of the file; logged once
}

// Open reads the file. It returns an error for an invalid file, because there is no earlier content that could stay in
// force.
func Open[T any](cfg Config[T]) (*File[T], error) {
	f := &File[T]{cfg: cfg}
	v, err := f.readFiles()
	if err != nil {
		return nil, err
	}
	f.force.Store(&v)
	return f, nil
}

// Get returns the content in force.
func (f *File[T]) Get() (v T) {
	if f != nil {
		v = *f.force.Load()
	}
	return v
}

// Run checks the file until ctx ends.
func (f *File[T]) Run(ctx context.Context) {
	if f == nil {
		return
	}
	for range loop.Every(ctx, interval) {
		f.ReloadIfChanged()
	}
}

// readFiles reads and parses the files, and stores their paths and the sum of their content.
func (f *File[T]) readFiles() (v T, err error) {
	f.paths = nil
	sum := sha256.New()
	read := func(path string) ([]byte, error) {
		f.paths = append(f.paths, path)
		return f.readInto(sum, path)
	}
	raw, err := read(f.cfg.Path)
	if err == nil {
		v, err = f.cfg.Parse(raw, read)
	}
	f.sum = [sha256.Size]byte(sum.Sum(nil))
	return v, err
}

// readInto reads a file and adds its content to a sum, or the reason why it cannot be read.
func (f *File[T]) readInto(sum io.Writer, path string) ([]byte, error) {
	raw, err := f.cfg.Read(path)
	fmt.Fprintf(sum, "%d %s%v", len(raw), raw, err)
	return raw, err
}

// ReloadIfChanged parses the file again if its content, or that of a file that it names, has changed. A valid content
// comes into force. For an invalid one the error is logged once.
func (f *File[T]) ReloadIfChanged() {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := sha256.New()
	for _, path := range f.paths {
		_, _ = f.readInto(sum, path) // the sum contains the error
	}
	if f.sum == [sha256.Size]byte(sum.Sum(nil)) {
		return
	}
	before, fault := f.Get(), f.fault
	v, err := f.readFiles()
	if err != nil {
		if f.fault = err.Error(); f.fault != fault {
			f.cfg.Logger.Error("the "+f.cfg.Name+" is invalid; its previous content stays in force",
				"file", f.cfg.Path, "error", err)
		}
		return
	}
	f.fault = ""
	f.force.Store(&v)
	if changed := f.cfg.Changed != nil && f.cfg.Changed(before, v); !changed && fault != "" {
		f.cfg.Logger.Info("the "+f.cfg.Name+" is valid again and in force", "file", f.cfg.Path)
	}
}
