//go:build chaos || thirdparty

package trial

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/agentherald/herald/internal/devnet/devnettest"
)

var shared Bench

func TestMain(m *testing.M) { shared.Main(m, devnettest.Leftovers()...) }

// getBefore returns the programs of an older commit, and names it (make chaos BEFORE=…).
func getBefore(t *testing.T) (before Programs, commit string) {
	t.Helper()
	before, commit, err := shared.GetBefore(t)
	if errors.Is(err, ErrNoHistory) && os.Getenv("HERALD_TRIAL_NO_HISTORY") == "1" {
		fmt.Println("chaos: N-1 beside N: not run, there is no git history (HERALD_TRIAL_NO_HISTORY=1)")
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("the programs of an older commit cannot be built: %v (BEFORE= names another commit, "+
			"HERALD_TRIAL_NO_HISTORY=1 leaves this row out)", err)
	}
	return before, commit
}
