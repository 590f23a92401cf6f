package main

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"golang.org/x/sync/errgroup"
)

// freezing returns the URL of a database behind a proxy. Once a client has sent the text at, the proxy forwards nothing
// more, on existing and new connections.
func freezing(t *testing.T, database, at string) (address string, frozen *atomic.Bool) {
	t.Helper()
	gate, through := heraldtest.PostgresGate(t, database)
	gate.Open()
	frozen = &atomic.Bool{}
	forward := func(to io.Writer, from io.Reader, watch string) {
		buf := make([]byte, 1<<16)
		for {
			n, err := from.Read(buf)
			if watch != "" && bytes.Contains(buf[:n], []byte(watch)) {
				frozen.Store(true)
			}
			if err != nil {
				return
			}
			if !frozen.Load() {
				_, _ = to.Write(buf[:n])
			}
		}
	}
	proxy := heraldtest.Listen(t, func(in net.Conn) {
		out, err := net.Dial("tcp", gate.Address)
		if err != nil {
			return
		}
		done := make(chan struct{})
		go func() { defer close(done); forward(in, out, "") }()
		forward(out, in, at)
		_ = out.Close()
		<-done
	})
	return strings.Replace(through, gate.Address, proxy, 1), frozen
}

// TestCommandsEndWithTheirTimeout checks that a command ends after its --timeout if the database stops answering during
// a statement.
func TestCommandsEndWithTheirTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	var group errgroup.Group // they do nothing but wait
	for args, at := range map[string]string{
		"delivery list":            "FROM herald.open_deliveries",
		"delivery show " + oneID:   "FROM herald.deliveries",
		"delivery cancel " + oneID: "herald.deliveries",
		"agent list":               "herald.agents",
		"agent disable 8453:42":    "herald.agents",
		"keys list":                "secret_headers",
		"keys reencrypt":           "secret_headers",
		"token list":               "agent_mcp_tokens",
		"migrate status":           "herald.migrations",
		"api-token list":           "herald.migrations",
	} {
		database, frozen := freezing(t, heraldtest.Postgres(t, postgres.Migrate), at)
		env := []string{"DATABASE_URL=" + database, "REDIS_URL=redis://127.0.0.1:1", "HERALD_KEYSET=" + heraldtest.Keyset(t)}
		group.Go(func() error {
			began := time.Now()
			code, out, errs := worker(t, env, append(strings.Fields(args), "--timeout="+timeout.String())...)
			took := time.Since(began)
			if !frozen.Load() || code != exitFailed || took > timeout+10*time.Second { // it takes one second on an idle machine
				t.Errorf("%s: frozen %t, after %s exit code %d\n%s%s", args, frozen.Load(), took.Round(time.Millisecond), code, out, errs)
			}
			if says := "worker: the database took longer than 2s to answer: try again, or give it longer with --timeout"; args == "delivery list" && !strings.Contains(errs, says) {
				t.Errorf("%s does not say %q:\n%s", args, says, errs)
			}
			return nil
		})
	}
	_ = group.Wait()
}

// TestProbeDoesNotWaitForTheDatabase checks that a probe does not wait for an unavailable database, because it does not
// need one.
func TestProbeDoesNotWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	a := newMCPAgent(t, nil)
	began := time.Now()
	code, out, errs := worker(t, []string{"DATABASE_URL=postgres://herald@" + heraldtest.Address(t) + "/herald", "REDIS_URL=redis://127.0.0.1:1",
		"HERALD_KEYSET=" + heraldtest.Keyset(t), "HERALD_ALLOW_HTTP=true", "HERALD_ALLOW_NETWORKS=127.0.0.0/8"}, "agent", "probe", "8453:42", "--url", a.URL)
	took := time.Since(began)
	if code != 0 || !strings.Contains(out, "fitted to agent.receiveFeedback") || took > 4*time.Second {
		t.Errorf("after %s exit code %d\n%s%s", took.Round(time.Millisecond), code, out, errs)
	}
}
