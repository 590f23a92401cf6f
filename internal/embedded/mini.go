package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

const (
	// tickEvery moves miniredis' key lifetimes, which stand still by themselves. Its own ClockTTL is not used: it walks
	// all keys on every command.
	tickEvery = 500 * time.Millisecond
	// snapshotShare bounds the time that snapshots take: they stop all other commands.
	snapshotShare = 20
	// snapshotName is below DIR/redis.
	snapshotName = "miniredis.snapshot"
)

// mini is miniredis in this process. Only database 0 survives a restart, which is the one that asynq uses.
type mini struct {
	server   *miniredis.Miniredis
	client   *redis.Client
	address  string
	password string
	snapshot string // file; empty: nothing is kept
	every    time.Duration
	logger   *slog.Logger

	quit  chan struct{} // closed by close: the loop ends
	ended chan struct{} // closed by the loop
	gone  chan struct{} // closed when nothing serves any more
}

func startMini(ctx context.Context, cfg RedisConfig, base string, log *slog.Logger) (_ engine, err error) {
	m := &mini{server: miniredis.NewMiniRedis(), password: rand.Text(), every: cfg.SnapshotEvery, logger: log,
		quit: make(chan struct{}), ended: make(chan struct{}), gone: make(chan struct{})}
	if m.every == 0 {
		m.every = 5 * time.Second
	}
	if !cfg.Ephemeral {
		m.snapshot = filepath.Join(base, snapshotName)
	}
	m.server.RequireAuth(m.password)
	if err := m.server.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("start miniredis: %w", err)
	}
	m.address = m.server.Addr()
	m.client = redis.NewClient(&redis.Options{
		// Not over miniredis' own in-memory connection: that has no buffer, and a pipeline would wait for itself.
		Addr:            m.address,
		Password:        m.password,
		Protocol:        2,
		DisableIdentity: true,
		PoolSize:        1,
		MaxRetries:      -1,
		ReadTimeout:     time.Minute,
		WriteTimeout:    time.Minute,
	})
	if err := m.restore(ctx); err != nil {
		_ = m.client.Close()
		m.server.Close()
		return nil, err
	}
	go m.loop()
	log.Info("redis: ready", "address", m.address, "snapshot", m.snapshot)
	return m, nil
}

// restore loads the snapshot. One that cannot be read is set aside: the queue is made anew from Postgres.
func (m *mini) restore(ctx context.Context) error {
	if m.snapshot == "" {
		return nil
	}
	ctx, cancel := withTimeout(ctx, startTimeout)
	defer cancel()
	f, err := os.Open(m.snapshot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the miniredis snapshot: %w", err)
	}
	defer f.Close()
	began := time.Now()
	s, err := readSnapshot(f)
	if err == nil {
		err = s.load(ctx, m.client, time.Now())
	}
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("load the miniredis snapshot: %w", err)
		}
		aside := m.snapshot + ".unreadable"
		m.logger.Warn("redis: the miniredis snapshot cannot be used and is set aside; queued work is handed out again from Postgres",
			"err", err, "moved", aside)
		m.server.FlushAll()
		return os.Rename(m.snapshot, aside)
	}
	m.logger.Info("redis: restored the miniredis snapshot", "keys", len(s.entries), "age", time.Since(s.taken).Round(time.Second),
		"took", time.Since(began).Round(time.Millisecond))
	return nil
}

// loop moves the key lifetimes and writes snapshots until close.
func (m *mini) loop() {
	defer close(m.ended)
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	save := time.NewTimer(m.every)
	defer save.Stop()
	if m.snapshot == "" {
		save.Stop()
	}
	last := time.Now()
	for {
		select {
		case <-m.quit:
			return
		case now := <-tick.C:
			m.server.FastForward(now.Sub(last))
			last = now
		case <-save.C:
			began := time.Now()
			if err := m.save(context.Background()); err != nil {
				m.logger.Warn("redis: the miniredis snapshot was not written; a crash now would lose what came since the last one", "err", err)
			}
			save.Reset(max(m.every, snapshotShare*time.Since(began)))
		}
	}
}

// save writes the snapshot file.
func (m *mini) save(ctx context.Context) error {
	ctx, cancel := withTimeout(ctx, time.Minute)
	defer cancel()
	s, err := takeSnapshot(ctx, m.client, time.Now())
	if err != nil {
		return err
	}
	return writeAtomic(m.snapshot, 0o600, func(w io.Writer) error { return s.write(w) })
}

func (m *mini) url() string {
	u := url.URL{Scheme: "redis", User: url.UserPassword("", m.password), Host: m.address}
	return u.String()
}

func (m *mini) describe() string {
	where := "snapshots in " + m.snapshot
	if m.snapshot == "" {
		where = "nothing is kept"
	}
	return fmt.Sprintf("miniredis in this process on %s, %s", m.address, where)
}

func (m *mini) done() <-chan struct{} { return m.gone }

func (m *mini) close(ctx context.Context) error {
	close(m.quit)
	<-m.ended
	var err error
	if m.snapshot != "" {
		if err = m.save(ctx); err != nil {
			err = fmt.Errorf("write the last miniredis snapshot: %w", err)
		}
	}
	err = errors.Join(err, m.client.Close())
	m.server.Close()
	close(m.gone)
	return err
}
