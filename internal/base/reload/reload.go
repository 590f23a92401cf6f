// Package reload keeps the content of a configuration file in force and reads the file again when it changes.
//
// Invariants: Get takes no lock. If the file becomes invalid, the last valid content stays in force, and each error is
// logged once.
package reload

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// interval is the interval between two checks of the file.
const interval = 2 * time.Second

// Config configures a File. Ticks and Changed may be nil.
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
	Ticks   <-chan time.Time // triggers the checks. Default: every 2 s during Run.
}

// File holds the content in force. It is safe for concurrent use.
type File[T any] struct {
	cfg   Config[T]
	force atomic.Pointer[T]

	mu   sync.Mutex             // held during a check
	seen map[string]os.FileInfo // of the files that the last check read; nil: one of them could not be read
	// settled means that the files were read again after their last change. A coarse file time may not distinguish two
	// writes.
	settled bool
	sum     [sha256.Size]byte // of the last content read, valid or not
	fault   string            // the current error of the file; logged once
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
func (f *File[T]) Get() T { return *f.force.Load() }

// Run checks the file until ctx ends.
func (f *File[T]) Run(ctx context.Context) {
	ticks := f.cfg.Ticks
	if ticks == nil {
		ticks = time.Tick(interval)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			f.ReloadIfChanged()
		}
	}
}

// readFiles reads and parses the files, and stores their state in f.seen and f.sum.
func (f *File[T]) readFiles() (v T, err error) {
	f.seen = map[string]os.FileInfo{}
	sum := sha256.New()
	unread := false
	read := func(path string) ([]byte, error) {
		info, _ := os.Stat(path) // before the file is read, so that a later change is noticed
		raw, err := f.cfg.Read(path)
		f.seen[path], unread = info, unread || err != nil
		fmt.Fprintf(sum, "%d %s", len(raw), raw)
		return raw, err
	}
	raw, err := read(f.cfg.Path)
	if err == nil {
		v, err = f.cfg.Parse(raw, read)
	}
	if f.sum = [sha256.Size]byte(sum.Sum(nil)); unread {
		f.seen = nil
	}
	return v, err
}

// isUnchanged reports whether the files have the same times and sizes as when they were read, and symbolic links lead
// to the same files. In Kubernetes volumes, only the links change.
func (f *File[T]) isUnchanged() bool {
	for path, was := range f.seen {
		info, err := os.Stat(path)
		if err != nil || was == nil || !os.SameFile(info, was) ||
			!info.ModTime().Equal(was.ModTime()) || info.Size() != was.Size() {
			return false
		}
	}
	return f.seen != nil
}

// ReloadIfChanged reads the file again if it may have changed. A valid content comes into force. For an invalid one the
// error is logged once.
func (f *File[T]) ReloadIfChanged() {
	f.mu.Lock()
	defer f.mu.Unlock()
	same := f.isUnchanged()
	if same && f.settled {
		return
	}
	before, sum, fault := f.Get(), f.sum, f.fault
	v, err := f.readFiles()
	f.settled = same && f.seen != nil
	switch {
	case err != nil && err.Error() != fault:
		f.fault = err.Error()
		f.cfg.Logger.Error("the "+f.cfg.Name+" is invalid; its previous content stays in force",
			"file", f.cfg.Path, "error", err)
		fallthrough
	case err != nil, f.sum == sum && fault == "":
		return
	}
	f.fault = ""
	f.force.Store(&v)
	if changed := f.cfg.Changed != nil && f.cfg.Changed(before, v); !changed && fault != "" {
		f.cfg.Logger.Info("the "+f.cfg.Name+" is valid again and in force", "file", f.cfg.Path)
	}
}
