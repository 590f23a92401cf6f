package delivery

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/queue"
)

// server is asynq's server: it takes tasks, renews their leases, and acknowledges them while it holds the leases.
type server struct {
	p     *process
	name  string
	quit  chan struct{} // closed: take no more tasks
	abort chan struct{} // closed: stop waiting for tasks
	took  chan struct{} // closed when it takes no more tasks
	tasks sync.WaitGroup

	mu     sync.Mutex
	active map[*redisTask]*holding
}

// holding is a task that this server runs.
type holding struct {
	lease time.Time
	lost  chan struct{} // closed when this server considers the lease expired
}

func newServer(p *process) *server {
	return &server{p: p, name: strconv.Itoa(p.name), quit: make(chan struct{}), abort: make(chan struct{}), took: make(chan struct{}), active: map[*redisTask]*holding{}}
}

func (s *server) start() {
	s.p.wg.Go(s.heart)
	s.p.wg.Go(s.take)
}

// shutdown stops taking tasks and waits for running ones, at most for patience. Then it puts the tasks back.
func (s *server) shutdown(patience time.Duration) {
	close(s.quit)
	timer := time.AfterFunc(patience, func() { close(s.abort) })
	defer timer.Stop()
	<-s.took
	s.p.runner.StopClaiming()
	s.tasks.Wait()
}

func (s *server) take() {
	defer close(s.took)
	slots := make(chan struct{}, s.p.runner.Tasks())
	redis := s.p.h.redis
	for {
		select {
		case slots <- struct{}{}:
		case <-s.quit:
			return
		case <-s.p.ctx.Done():
			return
		}
		if s.p.alive() != nil {
			return
		}
		var x *redisTask
		var news chan struct{}
		state, thaw := redis.is()
		if state == up {
			select {
			case <-s.quit:
				return
			default:
			}
			x, news = redis.take()
		}
		if x != nil {
			h := &holding{lease: time.Now().Add(s.p.h.tempo.asynqLease), lost: make(chan struct{})}
			s.mu.Lock()
			s.active[x] = h
			s.mu.Unlock()
			s.tasks.Add(1)
			s.p.wg.Go(func() {
				defer s.tasks.Done()
				defer func() { <-slots }()
				s.handle(x, h)
			})
			continue
		}
		<-slots
		poll := time.NewTimer(s.p.h.tempo.beat / 5) // while Redis is down
		if state == up {
			poll.Stop()
		}
		select {
		case <-news:
		case <-thaw:
		case <-poll.C:
		case <-s.quit:
		case <-s.p.ctx.Done():
		}
		poll.Stop()
		_ = s.p.pause(s.p.ctx, s.p.h.some("poll", s.name, 4*s.p.h.tempo.latency)) // the seed decides which one is first
	}
}

// handle runs one task. Its context ends with its lease, and then the result of the handler is ignored.
func (s *server) handle(x *redisTask, h *holding) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.active, x)
	}()
	ctx, cancel := context.WithCancel(s.p.ctx)
	defer cancel()
	done := make(chan error, 1)
	s.p.wg.Go(func() {
		_, err := s.p.runner.Deliver(ctx, x.DeliveryID, x.N)
		done <- err
	})
	select {
	case <-s.abort:
		s.p.h.count("task put back at shutdown")
		s.acknowledge(x, h, -1)
	case <-h.lost:
		s.p.h.count("asynq lease lost")
	case err := <-done:
		var archived *queue.ArchivedError
		var wait *queue.WaitError
		again := time.Duration(0)
		switch {
		case errors.Is(err, queue.ErrDropped):
			again = dropped
		case errors.As(err, &wait):
			again = max(time.Until(s.p.h.tempo.ceil(wait.At)), 1)
		case err != nil && !errors.As(err, &archived):
			again = s.p.h.tempo.net
		}
		s.acknowledge(x, h, again)
	}
}

// acknowledge retries until the lease expires. Then the recoverer gives the task to another server.
func (s *server) acknowledge(x *redisTask, h *holding, again time.Duration) {
	for {
		if s.p.alive() != nil {
			return
		}
		if state, _ := s.p.h.redis.is(); state == up {
			s.p.h.redis.finish(x, again)
			return
		}
		s.mu.Lock()
		left := time.Until(h.lease)
		s.mu.Unlock()
		if left <= 0 || s.p.pause(s.p.ctx, min(left, s.p.h.tempo.beat)) != nil {
			s.p.h.count("acknowledgement lost")
			return
		}
	}
}

// heart renews leases and recovers the tasks of other servers.
func (s *server) heart() {
	if s.p.pause(s.p.ctx, s.p.h.some("heart", s.name, s.p.h.tempo.beat)) != nil {
		return
	}
	ticker := time.NewTicker(s.p.h.tempo.beat)
	defer ticker.Stop()
	for n := 1; ; n++ {
		select {
		case <-ticker.C:
		case <-s.p.ctx.Done():
			return
		}
		if s.p.alive() != nil {
			return
		}
		state, _ := s.p.h.redis.is()
		s.mu.Lock()
		for x, h := range s.active {
			if state == up && s.p.h.redis.beat(x) {
				h.lease = time.Now().Add(s.p.h.tempo.asynqLease)
				continue
			}
			select {
			case <-h.lost:
			default:
				if time.Now().After(h.lease) {
					close(h.lost)
				}
			}
		}
		s.mu.Unlock()
		if state == up && n%12 == 0 {
			s.p.h.redis.recover()
		}
	}
}
