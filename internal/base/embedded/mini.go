package embedded

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// tickEvery is the interval at which the clock of miniredis advances, which does not run by itself. Its own ClockTTL is
// not used, because it visits all keys on every command.
const tickEvery = 500 * time.Millisecond

// mini is miniredis in this process. It loses its data at a restart; the reconciler then dispatches from Postgres
// again.
type mini struct {
	server *miniredis.Miniredis

	quit chan struct{} // closed by close to end the ticker
	gone chan struct{} // closed when the server has stopped
}

func startMini(log *slog.Logger) (*Server, error) {
	m := &mini{server: miniredis.NewMiniRedis(), quit: make(chan struct{}), gone: make(chan struct{})}
	password := rand.Text()
	m.server.RequireAuth(password)
	if err := m.server.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("start miniredis: %w", err)
	}
	go m.moveLifetimes()
	log.Info("redis: ready; its data ends with this process", "address", m.server.Addr())
	u := url.URL{Scheme: "redis", User: url.UserPassword("", password), Host: m.server.Addr()}
	return &Server{name: "redis", url: u.String(), mini: m, logger: log}, nil
}

func (m *mini) moveLifetimes() {
	defer close(m.gone)
	defer m.server.Close()
	tick := time.Tick(tickEvery)
	for last := time.Now(); ; {
		select {
		case <-m.quit:
			return
		case now := <-tick:
			m.server.FastForward(now.Sub(last))
			last = now
		}
	}
}

func (m *mini) stopServer() {
	close(m.quit)
	<-m.gone
}
