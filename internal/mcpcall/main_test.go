package mcpcall

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentherald/herald/internal/mcpcall/transport"
	"github.com/agentherald/herald/internal/netguard/guardtest"
)

// childMode names what this binary does as an agent's command instead of testing; see stdio_test.go.
const childMode = "MCPCALL_TEST_CHILD"

func TestMain(m *testing.M) {
	transport.RunSupervisor()
	if mode := os.Getenv(childMode); mode != "" {
		os.Exit(child(mode))
	}
	goleak.VerifyTestMain(m)
}

// newPool makes a pool that reaches loopback and runs this test binary, closed and checked at the end of the test.
func newPool(t testing.TB, adapt ...func(*Config)) *Pool {
	t.Helper()
	guard := guardtest.Loopback(t, nil)
	cfg := Config{Guard: guard, StdioCommands: [][]string{{os.Args[0]}}, RelistAfter: time.Nanosecond, Supervised: true}
	for _, a := range adapt {
		a(&cfg)
	}
	p, err := NewPool(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("%T: %v", err, err))
	}
	return v
}
