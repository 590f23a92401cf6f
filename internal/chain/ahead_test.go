package chain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestCheckFarAhead: a job names a block more than an hour above a fresh head. Check finds no event there, even if the
// feedback exists. If the job's transaction is mined, its receipt decides.
func TestCheckFarAhead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	j := w.Feedback()
	w.Mine(2)
	head, err := w.client.ReadHead(w.Ctx)
	heraldtest.Must(t, err)
	unmined := with(j, func(j *job.Job) { j.TransactionHash = common.Hash{9} })
	bare := with(j, func(j *job.Job) { j.TransactionHash, j.LogIndex = common.Hash{}, nil })
	unknown := with(bare, func(j *job.Job) { j.FeedbackIndex = 77 })
	hour := w.client.countBlocks(w.Ctx, maxAhead)
	for _, ahead := range []uint64{hour + 1, math.MaxInt64, math.MaxUint64 - uint64(head.Number)} {
		for name, j := range map[string]job.Job{"mined": j, "unmined": unmined, "stored": bare, "not stored": unknown} {
			far := with(j, func(j *job.Job) { j.BlockHash, j.BlockNumber = common.Hash{}, uint64(head.Number)+ahead })
			got := w.check(far, VerifyReceipt)
			if name == "mined" && got.Found && got.BlockNumber == j.BlockNumber {
				continue
			}
			if got != newContradiction("blockNumber") {
				t.Errorf("%s, %d above the head: %+v", name, ahead, got)
			}
		}
	}
	near := with(unmined, func(j *job.Job) { j.BlockNumber = uint64(head.Number) + hour })
	if got := w.check(near, VerifyReceipt); !got.Found || got.Confirmed || got.ConfirmedIn != hour+2 {
		t.Errorf("%d above the head: %+v", hour, got)
	}
}

// TestCheckBehindOldHead: a job names no block, and the node's newest block is old. The event may be in a newer block, so
// Check does not refute it. A job that names a block below the head is refuted.
func TestCheckBehindOldHead(t *testing.T) {
	t.Parallel()
	const ethereum, unknown = 1, 31337
	waits := func(_ Standing, err error) bool { return as[*node.UnavailableError](err) }
	for name, c := range map[string]struct {
		chain uint64
		age   time.Duration
		block uint64
		want  func(Standing, error) bool
	}{
		"an old head":                     {ethereum, 10 * time.Minute, 0, waits},
		"a fresh head":                    {ethereum, time.Minute, 0, isRefused("transactionHash")},
		"an old head, and a block below":  {ethereum, 10 * time.Minute, 3, isRefused("transactionHash")},
		"an old head of an unknown chain": {unknown, 10 * time.Minute, 0, isRefused("transactionHash")},
	} {
		_, j := chaintest.ScriptedLog(t, 3)
		j.ChainID, j.BlockNumber = c.chain, c.block
		stub := chaintest.NewNode(t, 1)
		stub.Set(nil, func(method string, _ []json.RawMessage) (any, any) {
			switch method {
			case "eth_chainId":
				return hexutil.Uint64(c.chain), nil
			case "eth_call":
				return nil, chaintest.Error{Code: 3, Message: "execution reverted"}
			case "eth_getBlockByNumber":
				return map[string]any{"number": "0x9", "hash": stub.Hash(9), "timestamp": hexutil.Uint64(time.Now().Add(-c.age).Unix())}, nil
			}
			return nil, nil
		})
		client := newClient(t, node.Config{ChainID: c.chain, URLs: []secret.Secret{secret.New(stub.URL)}},
			Config{Registries: chaintest.ScriptedRegistries().Registries(), LogRange: erc8004.Depth{Blocks: 5}})
		for _, hash := range []common.Hash{{}, {9}} {
			j.TransactionHash = hash
			if s, err := client.Check(t.Context(), j, VerifyReceipt); !c.want(s, err) {
				t.Errorf("%s, transaction %s: %+v, %v", name, hash, s, err)
			}
		}
	}
}

// TestCheckNeedsConfirmingBlocks: a node reports a high head but lacks the blocks below it. Check does not count them
// as confirmations.
func TestCheckNeedsConfirmingBlocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	j := w.Feedback()
	// The node gives the event's block, which is the newest, a higher number.
	relabelled := chaintest.Bend(t, w.Net.URL(), func(_ chaintest.Request, result json.RawMessage) json.RawMessage {
		return bytes.ReplaceAll(result, fmt.Appendf(nil, `"number":"%#x"`, j.BlockNumber), fmt.Appendf(nil, `"number":"%#x"`, j.BlockNumber+9))
	})
	liar := w.newClient(Config{Confirmations: erc8004.Depth{Blocks: 3}, LogRange: erc8004.Depth{Blocks: 1000}}, relabelled)
	if head, err := liar.ReadHead(w.Ctx); err != nil || uint64(head.Number) != j.BlockNumber+9 {
		t.Fatalf("the node names head %d: %v", head.Number, err)
	}
	got, err := liar.Check(w.Ctx, j, VerifyReceipt)
	if err != nil || !got.Found || got.Confirmed || got.ConfirmedIn == 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestCheckOfImpossibleTime: a node states times in milliseconds. The event counts, and the agent gets no time.
func TestCheckOfImpossibleTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	j := w.Feedback()
	bent := chaintest.Bend(t, w.Net.URL(), func(_ chaintest.Request, result json.RawMessage) json.RawMessage {
		return regexp.MustCompile(`"timestamp":"0x[0-9a-f]+"`).ReplaceAll(result, []byte(`"timestamp":"0x18bcfe56800"`))
	})
	c := w.newClient(Config{}, bent)
	if s, err := c.Check(w.Ctx, j, VerifyReceipt); err != nil || !s.Confirmed || s.Timestamp != 0 || s.Event.Timestamp != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestMissingIsSaturated: jobs and nodes may report any height, so the sum of a height and the confirmations must not
// overflow.
func TestMissingIsSaturated(t *testing.T) {
	t.Parallel()
	const most = math.MaxUint64
	for _, c := range []struct{ height, confirmations, head, missing uint64 }{
		{0, 0, 0, 0}, {10, 3, 10, 3}, {10, 3, 13, 0}, {10, 3, 99, 0},
		{most, 0, most, 0}, {most, 3, 100, most - 100}, {most - 1, 3, 100, most - 100}, {100, most, 100, most - 100},
		{most, most, 0, most},
	} {
		client := &Client{confirmations: erc8004.Depth{Blocks: c.confirmations}}
		if got, _, err := client.countMissing(t.Context(), VerifyReceipt, c.height, c.head); err != nil || got != c.missing {
			t.Errorf("%+v: %d missing, %v", c, got, err)
		}
	}
	client := newClient(t, node.Config{ChainID: 1, URLs: []secret.Secret{secret.New("http://127.0.0.1:1")}},
		Config{Confirmations: erc8004.Depth{Blocks: most}})
	if s, ahead, err := client.checkAhead(t.Context(), 5, node.Block{Number: 4}); err != nil || !ahead || s.ConfirmedIn != most {
		t.Errorf("ahead: %+v, %v", s, err)
	}
	if got := client.estimateTime(t.Context(), most); got != maxEstimate {
		t.Errorf("%d blocks take %s", uint64(most), got)
	}
}
