package embedded

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// redisServer is a redis-server or valkey-server that runs as a child process on a unix socket.
type redisServer struct {
	child     *child
	binary    redisBinary
	acct      account
	data      string
	sockets   string
	tempSock  bool
	ephemeral *ephemeral // nil: the append-only file must be flushed at the stop
	lock      *Lock
}

const redisSocket = "redis.sock"

// startRedisServer starts a server found on the machine. It returns ErrNoRedis without one.
func startRedisServer(ctx context.Context, cfg RedisConfig) (_ engine, err error) {
	log, dir := cfg.Logger, cfg.Dir
	ctx, cancel := withTimeout(ctx, startTimeout)
	defer cancel()
	s := &redisServer{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(context.WithoutCancel(ctx)))
		}
	}()
	if cfg.Ephemeral {
		if s.ephemeral, err = newEphemeral(ctx, "", log); err != nil {
			return nil, err
		}
		dir = s.ephemeral.dir
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	base := filepath.Join(dir, "redis")
	if err := ensureDir(base); err != nil {
		return nil, err
	}
	if s.lock, err = lockPart(ctx, base); err != nil {
		return nil, err
	}

	s.data = filepath.Join(base, "data")
	if s.acct, err = redisAccount(s.data); err != nil {
		return nil, err
	}
	var passed []string
	if s.binary, passed, err = findRedis(ctx, cfg.CacheDir, s.acct, log); errors.Is(err, ErrNoRedis) {
		return nil, explainNoRedis(passed)
	} else if err != nil {
		return nil, err
	}
	s.acct = s.acct.inPrivateGroup()
	if err := errors.Join(s.acct.restrictFolder(base, 0o710), s.acct.checkPassage(base)); err != nil {
		return nil, err
	}
	log.Info("redis: using", "server", s.binary.name, "version", s.binary.version, "path", s.binary.path,
		"user", s.acct.String())
	where := filepath.Join(base, "socket")
	if err := stopLeftoverRedis(ctx, where, log); err != nil {
		return nil, err
	}
	if err := dataDir(s.data, s.acct); err != nil {
		return nil, err
	}
	if s.sockets, s.tempSock, err = socketFolder(base, s.acct); err != nil {
		return nil, err
	}
	if err := writeAtomic(where, 0o600, func(w io.Writer) error {
		_,
			err := io.WriteString(w, s.socketPath())
		return err
	}); err != nil {
		return nil, err
	}
	began := time.Now()
	server := program{name: s.binary.name, path: s.binary.path, args: s.serverArgs(), libs: s.binary.libs, acct: s.acct,
		onDeath: syscall.SIGTERM, logger: log}
	if s.child, err = server.start(); err != nil {
		return nil, err
	}
	err = pollUntil(ctx, 5*time.Millisecond, func() (bool, error) {
		select {
		case <-s.child.done:
			return false, s.child.startError()
		default:
		}
		// Any other result means that there is no socket yet, or that the server still loads the append-only file.
		answer, err := askRedis(ctx, s.socketPath(), "PING")
		return err == nil && answer == "+PONG", nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait for %s: %w", s.binary.name, err)
	}
	s.child.setServing(true)
	log.Info("redis: ready", "socket", s.socketPath(), "took", time.Since(began).Round(time.Millisecond))
	return s, nil
}

// serverArgs returns the server's command line: no TCP, no eviction, an append-only file flushed every second.
func (s *redisServer) serverArgs() []string {
	keep := "yes"
	if s.ephemeral != nil {
		keep = "no"
	}
	return []string{
		"--port", "0",
		"--unixsocket", s.socketPath(),
		"--unixsocketperm", "700",
		"--dir", s.data,
		"--appendonly", keep,
		"--appendfsync", "everysec",
		"--save", "",
		"--maxmemory-policy", "noeviction",
		"--daemonize", "no",
		"--loglevel", "notice",
		"--logfile", "",
	}
}

func (s *redisServer) socketPath() string { return filepath.Join(s.sockets, redisSocket) }

func (s *redisServer) url() string {
	u := url.URL{Scheme: "redis-socket", Path: s.socketPath()}
	return u.String()
}

func (s *redisServer) close(ctx context.Context) error {
	var errs []error
	if s.child != nil {
		ask := syscall.SIGTERM
		if s.ephemeral != nil {
			ask = syscall.SIGKILL
		}
		errs = append(errs, s.child.stop(ctx, ask, syscall.SIGKILL))
	}
	if s.tempSock {
		errs = append(errs, os.RemoveAll(s.sockets))
	}
	return errors.Join(append(errs, s.lock.Release(), s.ephemeral.remove())...)
}

// stopLeftoverRedis stops a server that a killed process left. The file at where names its socket. The caller holds the
// lock.
func stopLeftoverRedis(ctx context.Context, where string, log *slog.Logger) error {
	b, err := readSmall(where)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	socket := strings.TrimSpace(string(b))
	if filepath.Base(socket) != redisSocket {
		return nil
	}
	ctx, cancel := withTimeout(ctx, stopTimeout)
	defer cancel()
	asked := false
	err = pollUntil(ctx, 10*time.Millisecond, func() (bool, error) {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", socket)
		if err != nil {
			return true, nil
		}
		_ = conn.Close()
		if !asked {
			log.Info("redis: stopping a server that a killed process left", "socket", socket)
			asked = true
		}
		// The append-only file is flushed despite NOSAVE. While the server loads it, the answer is an error: ask again.
		_, _ = askRedis(ctx, socket, "SHUTDOWN NOSAVE")
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("a Redis left by a killed process does not end: %w", err)
	}
	if dir := filepath.Dir(socket); strings.HasPrefix(filepath.Base(dir), socketPrefix) {
		_ = os.Remove(socket)
		_ = os.Remove(dir)
	}
	return nil
}

// askRedis sends one inline command and returns the first line of the answer.
func askRedis(ctx context.Context, socket, command string) (string, error) {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReaderSize(io.LimitReader(conn, 512), 512).ReadString('\n')
	return strings.TrimSpace(line), err
}
