package embedded

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/url"
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
	if err := dataDir(s.data, s.acct); err != nil {
		return err
	}
	if s.sockets, s.tempSock, err = socketFolder(s.base, s.acct); err != nil {
		return err
	}
	socket := url.URL{Scheme: "redis-socket", Path: filepath.Join(s.sockets, redisSocket)}
	s.url = socket.String()
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
