package chain

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestFalseIdentity: a node lies about the identity registry of an event's registry, or answers zeros because it lacks the
// state. That decides nothing about later checks, and zeros refuse no event.
func TestFalseIdentity(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	j := w.Feedback()
	call := hexutil.Encode(erc8004.PackGetIdentityRegistry())
	for _, last := range []string{"0", "7"} {
		var lies atomic.Bool
		lies.Store(true)
		c := w.newClient(Config{}, chaintest.Bend(t, w.Net.URL(), func(q chaintest.Request, result json.RawMessage) json.RawMessage {
			if lies.Load() && q.Method == "eth_call" && strings.Contains(string(q.Params[0]), call) {
				return json.RawMessage(`"0x` + strings.Repeat("0", 63) + last + `"`)
			}
			return result
		}))
		s, err := c.Check(w.Ctx, j, VerifyReceipt)
		if last == "0" {
			heraldtest.Fails(t, "zeros", err, errZeroIdentity)
		} else {
			heraldtest.Must(t, err)
			heraldtest.Equal(t, "another address", s, Standing{Disagrees: "identityRegistry", Unlisted: true})
		}
		lies.Store(false)
		if s, err := c.Check(w.Ctx, j, VerifyReceipt); err != nil || !s.Confirmed {
			t.Errorf("%s, then the true one: %+v, %v", last, s, err)
		}
	}
}
