package api

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// drip is a body that sends a byte every ten seconds.
type drip struct {
	text     string
	deadline *time.Time
}

func (d *drip) Read(p []byte) (int, error) {
	due := time.Now().Add(10 * time.Second)
	if due.After(*d.deadline) {
		<-time.After(time.Until(*d.deadline))
		return 0, context.DeadlineExceeded
	}
	<-time.After(10 * time.Second)
	if d.text == "" {
		return 0, io.EOF
	}
	p[0], d.text = d.text[0], d.text[1:]
	return 1, nil
}

// deadlines records the read deadline of a request.
type deadlines struct {
	http.ResponseWriter
	at time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error { d.at = at; return nil }

// TestSlowLine: a line that arrives byte by byte is cut off after lineTimeout. Lines that arrive in time are read,
// however long the stream lasts.
func TestSlowLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"aaaa\nbbbb\ncccc\n": "aaaa\nbbbb\ncccc\n", "aaaa\nbbbbbbbbbbbbbbbb\n": "aaaa\nbbbbbb"} {
		synctest.Test(t, func(t *testing.T) {
			w := &deadlines{}
			body := &timedBody{ctx: t.Context(), body: &drip{text, &w.at}, control: http.NewResponseController(w)}
			got, err := io.ReadAll(body)
			if string(got) != want || (err == nil) != (text == want) {
				t.Errorf("%q: read %q, %v", text, got, err)
			}
		})
	}
}

// oneConn is a listener with one connection.
type oneConn struct{ conns chan net.Conn }

func (l oneConn) Accept() (net.Conn, error) {
	if conn, ok := <-l.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}
func (l oneConn) Close() error { close(l.conns); return nil }
func (oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// TestNoLine: a client that sends no line for lineTimeout learns that its line is missing, not that the worker stops.
func TestNoLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		listener := oneConn{make(chan net.Conn, 1)}
		listener.conns <- there
		web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			new(API).enqueueLines(w, r, server.Visitor{StillMay: func(context.Context) bool { return true }})
		})}
		go func() { _ = web.Serve(listener) }()
		_, err := io.WriteString(here, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
		heraldtest.Must(t, err)
		began := time.Now()
		res, err := http.ReadResponse(bufio.NewReader(here), nil)
		heraldtest.Must(t, err)
		answer, err := io.ReadAll(res.Body)
		if !strings.Contains(string(answer), `"incomplete"`) || time.Since(began) != lineTimeout {
			t.Errorf("after %s: %s, %v", time.Since(began), answer, err)
		}
		heraldtest.Must(t, here.Close())
		heraldtest.Must(t, web.Close())
	})
}
