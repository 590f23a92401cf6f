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
	server
	binary redisBinary
}

const redisSocket = "redis.sock"

// startRedisServer starts a server found on the machine. It returns ErrNoRedis without one.
func startRedisServer(ctx context.Context, cfg RedisConfig) (_ engine, err error) {
	log := cfg.Logger
	ctx, cancel := withTimeout(ctx, startTimeout)
	defer cancel()
	s := &redisServer{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(context.WithoutCancel(ctx)))
		}
	}()
	if err := s.lockFolder(ctx, "redis", cfg.Dir, cfg.Ephemeral, "", log); err != nil {
		return nil, err
	}
	acct, err := redisAccount(s.data)
	if err != nil {
		return nil, err
	}
	var passed []string
	if s.binary, passed, err = findRedis(ctx, cfg.CacheDir, acct, log); errors.Is(err, ErrNoRedis) {
		return nil, explainNoRedis(passed)
	} else if err != nil {
		return nil, err
	}
	if err := s.restrictTo(acct); err != nil {
		return nil, err
	}
	log.Info("redis: using", "server", s.binary.name, "version", s.binary.version, "path", s.binary.path,
		"user", s.acct.String())
	where := filepath.Join(s.base, "socket")
	if err := stopLeftoverRedis(ctx, where, log); err != nil {
		return nil, err
	}
	if err := dataDir(s.data, s.acct); err != nil {
		return nil, err
	}
	if s.sockets, s.tempSock, err = socketFolder(s.base, s.acct); err != nil {
		return nil, err
	}
	err = writeAtomic(where, 0o600, func(w io.Writer) error {
		_, err := io.WriteString(w, s.socketPath())
		return err
	})
	if err != nil {
		return nil, err
	}
	began := time.Now()
	program := program{name: s.binary.name, path: s.binary.path, args: s.serverArgs(), libs: s.binary.libs,
		onDeath: syscall.SIGTERM, logger: log}
	err = s.launch(ctx, program, func() (bool, error) {
		// Any other result means that there is no socket yet, or that the server still loads the append-only file.
		answer, err := askRedis(ctx, s.socketPath(), "PING")
		return err == nil && answer == "+PONG", nil
	})
	if err != nil {
		return nil, err
	}
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
	if s.ephemeral != nil {
		return s.release(ctx, syscall.SIGKILL, syscall.SIGKILL)
	}
	return s.release(ctx, syscall.SIGTERM, syscall.SIGKILL) // flushes the append-only file
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
