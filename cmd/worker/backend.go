package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/app"
	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/store/records"
)

// newOperator returns an Operator for one command. It asks its questions on the terminal and prints warnings to a.err.
func (a *command) newOperator() *operator.Operator {
	return operator.New(operator.Config{Settings: a.cfg, Backend: a.backend, Person: a, Logger: a.log,
		Timeout: a.timeout})
}

// attached is the operator.Backend of a command.
type attached struct{ *command }

func (b attached) OpenStore(ctx context.Context, o operator.StoreOptions) (*operator.Session, error) {
	found, err := backend.Attach(ctx, b.cfg, o.Wait, b.log)
	if err != nil {
		return nil, err
	}
	st, err := backend.OpenStore(ctx, b.cfg, found, o.Wait, o.Once, b.log)
	if err != nil {
		found.Stop(b.ctx, b.log)
		return nil, err
	}
	st.LimitCalls(o.Wait)
	s := &operator.Session{Ledger: st, Records: records.New(st), Close: func() { st.Close(); found.Stop(b.ctx, b.log) }}
	if found.RedisURL.IsZero() {
		return s, nil
	}
	s.Effort = func(ctx context.Context, agent erc8004.Agent) (*effort.Usage, error) {
		return b.readEffort(ctx, found.RedisURL, agent)
	}
	if !o.Queue {
		return s, nil
	}

	q, err := queue.Open(queue.Config{URL: found.RedisURL, DialOnce: true, Logger: b.log})
	if err == nil {
		s.Dispatcher, err = dispatch.New(q, b.log)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	closeStore := s.Close
	s.Spool, s.Close = q.Renewals(), func() { _ = q.Close(); closeStore() }
	return s, nil
}

// effortTimeout bounds the reading of an agent's effort budget from Redis.
const effortTimeout = 2 * time.Second

// readEffort reads an agent's effort budget from Redis.
func (b attached) readEffort(ctx context.Context, url secret.Secret, agent erc8004.Agent) (*effort.Usage, error) {
	q, err := queue.Open(queue.Config{URL: url, DialOnce: true, Logger: b.log})
	if err != nil {
		return nil, err
	}
	defer func() { _ = q.Close() }()
	client := q.Client(effortTimeout)
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(ctx, effortTimeout)
	defer cancel()
	return effort.ReadUsage(ctx, client, b.cfg.EffortBudget, agent)
}

func (b attached) OpenContent() (*operator.Content, error) {
	c, err := app.OpenContent(b.cfg, app.Options{Logger: b.log})
	if err != nil {
		return nil, err
	}
	return &c.Content, nil
}

func (b attached) Keyset() (*secret.Keyset, error) { return backend.Keyset(b.cfg) }
func (b attached) Master() (secret.Master, error)  { return backend.Master(b.cfg) }
func (b attached) DataDir() string                 { return backend.DataDir(b.cfg) }

// openDatabase waits until Postgres answers. It does not check the schema.
func (a *command) openDatabase() (url secret.Secret, stop func(), err error) {
	found, err := backend.Attach(a.ctx, a.cfg, a.timeout, a.log)
	if err != nil {
		return url, nil, err
	}
	stop = func() { found.Stop(a.ctx, a.log) }
	if err = found.Reach(a.ctx, a.timeout, a.log); err != nil {
		stop()
	}
	return found.DirectURL(), stop, err
}

// openTerminal opens the terminal that controls this process.
func openTerminal() (io.ReadWriteCloser, error) { return os.OpenFile("/dev/tty", os.O_RDWR, 0) }

// Notify implements operator.Person.
func (a *command) Notify(line string) { fmt.Fprintln(a.err, line) }

// Confirm implements operator.Person. It returns when ctx ends, although the pending read of the terminal may last
// until the process ends.
func (a *command) Confirm(ctx context.Context, question string) (bool, error) {
	tty, err := a.tty()
	if err != nil {
		return false, operator.ErrNoPerson
	}
	defer func() { _ = tty.Close() }()
	fmt.Fprintf(tty, "%s [y/N] ", question)
	reply := io.LimitReader(untilStopped{ctx, tty}, maxReply)
	answer, err := bufio.NewReaderSize(reply, maxReply).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	return (err == nil || err == io.EOF) && (answer == "y" || answer == "yes"), nil
}

// maxReply bounds the reply to a question, in bytes.
const maxReply = 16
