package mcpcall

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
)

// Server is an MCP server that is part of this process: it takes one JSON-RPC message and returns the answer to it, nil to a
// notification. It is called from several goroutines and must return soon after ctx ends: Pool.Close waits for it.
type Server interface {
	HandleMessage(ctx context.Context, message json.RawMessage) (answer json.RawMessage, err error)
}

// inProcess is the transport to a Server. The bounds are the other transports': the server is ours, what it answers may not be.
type inProcess struct {
	server Server
	limit  int64

	life context.Context
	end  context.CancelFunc

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup // calls of the server
}

func newInProcess(life context.Context, server Server, limit int64) *inProcess {
	t := &inProcess{server: server, limit: limit}
	t.life, t.end = context.WithCancel(life)
	return t
}

func (t *inProcess) Start(context.Context) error { return nil }

func (t *inProcess) Close() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.end()
	t.wg.Wait()
	return nil
}

func (t *inProcess) GetSessionId() string { return "" }

// SetNotificationHandler does nothing: the server has no way to speak unasked.
func (t *inProcess) SetNotificationHandler(func(mcp.JSONRPCNotification)) {}

// handled is what a Server returned.
type handled struct {
	answer json.RawMessage
	err    error
}

// handle calls the server and does not wait longer than ctx allows.
func (t *inProcess) handle(ctx context.Context, message any) (json.RawMessage, error) {
	raw, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil, transport.ErrTransportClosed
	}
	t.wg.Add(1)
	t.mu.Unlock()
	if x := exchangeOf(ctx); x != nil {
		x.markWritten()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.life, cancel)()
	done := make(chan handled, 1)
	go func() {
		defer t.wg.Done()
		var h handled
		defer func() {
			if v := recover(); v != nil {
				h = handled{err: fmt.Errorf("the server panicked: %s", excerpt(fmt.Sprint(v), 200))}
			}
			done <- h
		}()
		h.answer, h.err = t.server.HandleMessage(ctx, raw)
	}()
	select {
	case h := <-done:
		return h.answer, h.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (t *inProcess) SendRequest(ctx context.Context, request transport.JSONRPCRequest) (*transport.JSONRPCResponse, error) {
	answer, err := t.handle(ctx, request)
	switch {
	case err != nil:
		return nil, err
	case int64(len(answer)) > t.limit:
		err := &TooLargeError{Limit: t.limit, Unit: "bytes"}
		if x := exchangeOf(ctx); x != nil {
			x.markTooLarge(err)
		}
		return nil, err
	}
	var response transport.JSONRPCResponse
	if err := json.Unmarshal(answer, &response); err != nil {
		return nil, &BadAnswerError{Why: "it is no JSON-RPC message"}
	}
	if response.ID.IsNil() {
		return nil, errWrongID
	}
	return &response, nil
}

func (t *inProcess) SendNotification(ctx context.Context, notification mcp.JSONRPCNotification) error {
	_, err := t.handle(ctx, notification)
	return err
}
