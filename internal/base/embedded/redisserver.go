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

const redisSocket = "redis.sock"

// startRedisServer starts a redis-server or valkey-server found on the machine, as a child process on a unix socket. It
// returns ErrNoRedis without one.
func startRedisServer(ctx context.Context, cfg Config) (*Server, error) {
	ctx, cancel := withTimeout(ctx, startTimeout)
	defer cancel()
	s := &Server{name: "redis", ask: syscall.SIGTERM, insist: syscall.SIGKILL}
	return s, s.lockAndStart(ctx, cfg, s.startRedis)
}

// startRedis starts the server in the locked folder.
func (s *Server) startRedis(ctx context.Context, cfg Config) error {
	acct, err := redisAccount(s.data)
	if err != nil {
		return err
	}
	if s.installed, err = findRedis(ctx, cfg.CacheDir, acct, s.logger); err != nil {
		return err
	}
	if err := s.restrictTo(acct); err != nil {
		return err
	}
	s.logger.Info("redis: using", "server", s.installed.server, "version", s.installed.version,
		"path", s.installed.programPath(), "user", s.acct.String())
	where := filepath.Join(s.base, "socket")
	err = stopLeftoverRedis(ctx, where, s.logger)
	if err == nil {
		err = dataDir(s.data, s.acct)
	}
	if err == nil {
		s.sockets, s.tempSock, err = socketFolder(s.base, s.acct)
	}
	socket := url.URL{Scheme: "redis-socket", Path: filepath.Join(s.sockets, redisSocket)}
	s.url = socket.String()
	if err == nil {
		err = writeAtomic(where, 0o600, []byte(socket.Path))
	}
	if err != nil {
		return err
	}
	return s.launch(ctx, redisArgs(socket.Path, s.data, s.ephemeral == nil), func() (bool, error) {
		// Any other result means that there is no socket yet, or that the server still loads the append-only file.
		answer, err := askRedis(ctx, socket.Path, "PING")
		return err == nil && answer == "+PONG", nil
	})
}

// redisArgs returns the server's command line: no TCP, no eviction, an append-only file flushed every second.
func redisArgs(socket, data string, keep bool) []string {
	return []string{
		"--port", "0",
		"--unixsocket", socket,
		"--unixsocketperm", "700",
		"--dir", data,
		"--appendonly", map[bool]string{true: "yes", false: "no"}[keep],
		"--appendfsync", "everysec",
		"--save", "",
		"--maxmemory-policy", "noeviction",
		"--daemonize", "no",
		"--loglevel", "notice",
		"--logfile", "",
	}
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
