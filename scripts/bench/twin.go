//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/agentherald/herald/internal/testing/trial"
)

// twin describes how to run another server like a running one. Package embedded has found its program, its libraries
// and, if this process is root, an unprivileged user for it.
type twin struct {
	path string
	args []string // without the program's name
	env  []string
	as   *syscall.Credential // nil if this process is not root
}

// twinOf reads from /proc how a server runs.
func twinOf(pid int) (t twin, err error) {
	proc := fmt.Sprintf("/proc/%d", pid)
	if t.path, err = os.Readlink(filepath.Join(proc, "exe")); err != nil {
		return t, fmt.Errorf("find the program of process %d: %w", pid, err)
	}
	if t.args, err = readList(filepath.Join(proc, "cmdline")); err != nil || len(t.args) == 0 {
		return t, fmt.Errorf("read the command line of process %d: %w", pid, err)
	}
	t.args = t.args[1:]
	maps, err := os.ReadFile(filepath.Join(proc, "maps"))
	if err != nil {
		return t, fmt.Errorf("find the libraries of process %d: %w", pid, err)
	}
	// Its environment is not copied, because Redis overwrites it with its process title.
	t.env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C", "LD_LIBRARY_PATH=" + strings.Join(libraryFolders(string(maps)), ":")}
	if os.Geteuid() != 0 {
		return t, nil
	}
	uid, err1 := firstID(filepath.Join(proc, "status"), "Uid")
	gid, err2 := firstID(filepath.Join(proc, "status"), "Gid")
	t.as = &syscall.Credential{Uid: uid, Gid: gid}
	return t, errors.Join(err1, err2)
}

// readList reads a list that /proc separates by NUL.
func readList(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil || len(text) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}

// libraryFolders returns the folders of the shared libraries in /proc/PID/maps.
func libraryFolders(maps string) (folders []string) {
	for line := range strings.Lines(maps) {
		at := strings.IndexByte(line, '/')
		if at < 0 {
			continue
		}
		path := strings.TrimSpace(line[at:])
		if folder := filepath.Dir(path); strings.Contains(filepath.Base(path), ".so") && !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
	}
	return folders
}

// firstID returns the first of the four numbers in a line of /proc/PID/status.
func firstID(path, name string) (uint32, error) {
	text, err := readField(path, name)
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(text, "\t")
	id, err := strconv.ParseUint(first, 10, 32)
	return uint32(id), err
}

// folder creates a folder that the server may write to.
func (t twin) folder(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	if t.as == nil {
		return nil
	}
	return os.Chown(path, int(t.as.Uid), int(t.as.Gid))
}

// start runs a program from the folder of the server's program, as the server's user.
func (b *bench) start(t twin, program string, args ...string) (*trial.Process, error) {
	b.started++
	return trial.Foreign{Name: program, Path: filepath.Join(filepath.Dir(t.path), program), Args: args, Env: t.env, As: t.as,
		Log: filepath.Join(b.logs, fmt.Sprintf("%s.%d.log", program, b.started))}.Start()
}

// stop sends a signal to a process and waits for its end. It does nothing if the process has ended.
func stop(ctx context.Context, p *trial.Process, ask syscall.Signal) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	select {
	case <-p.Done():
		return p.Wait(ctx)
	default:
	}
	if err := p.Signal(ask); err != nil {
		return err
	}
	return p.Wait(ctx)
}
