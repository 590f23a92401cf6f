package eventlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// omitFirst returns a bend function that omits the first of two logs from every answer, including receipts.
func omitFirst(t *testing.T) func(q chaintest.Request, result json.RawMessage) json.RawMessage {
	return func(q chaintest.Request, result json.RawMessage) json.RawMessage {
		var changed any
		switch q.Method {
		case "eth_getLogs":
			var logs []json.RawMessage
			if json.Unmarshal(result, &logs) != nil || len(logs) < 2 {
				return result
			}
			changed = logs[1:]
		case "eth_getBlockReceipts":
			var receipts []map[string]json.RawMessage
			if json.Unmarshal(result, &receipts) != nil || len(receipts) < 2 {
				return result
			}
			receipts[0]["logs"] = json.RawMessage(`[]`)
			changed = receipts
		default:
			return result
		}
		bent, err := json.Marshal(changed)
		if err != nil {
			t.Error(err)
		}
		return bent
	}
}

// newTwins returns a chain whose newest block has two feedbacks with the same topics, so that a missing one does not
// show in the block's bloom.
func newTwins(t *testing.T) (*world, Filter) {
	t.Helper()
	w := newWorld(t)
	for range 2 {
		feedback := devnet.Feedback{AgentID: w.Agent, Value: big.NewInt(9)}
		_, err := w.Net.Submit(w.Ctx, w.Rater, w.Net.Deployment().Reputation, feedback.Calldata())
		heraldtest.Must(t, err)
	}
	w.Mine(1)
	head, err := w.client.ReadHead(w.Ctx)
	heraldtest.Must(t, err)
	return w, Filter{Address: []common.Address{w.Net.Deployment().Reputation},
		Topics: [][]common.Hash{erc8004.Topics(erc8004.NewFeedback)}, FromBlock: 1, ToBlock: hexutil.Uint64(head.Number)}
}

// read returns the logs that a follower of these nodes reads.
func (w *world) read(filter Filter, urls ...string) ([]types.Log, *Reader, error) {
	w.T.Helper()
	c := newReader(w.T, w.Net.ChainID(), false, urls...)
	logs, ends, err := c.ReadLogs(w.Ctx, filter)
	heraldtest.Must(w.T, err)
	logs, err = c.CompleteLogs(w.Ctx, filter, ends, logs)
	return logs, c, err
}

// TestReceiptsProveLogs: the block's bloom does not show that a log is missing. The receipts show it. If the node omits
// the log from them too, the client asks another node.
func TestReceiptsProveLogs(t *testing.T) {
	t.Parallel()
	w, filter := newTwins(t)
	liar := chaintest.Bend(t, w.Net.URL(), omitFirst(t))
	if logs, _, err := w.read(filter, w.Net.URL()); err != nil || len(logs) != 2 {
		t.Errorf("of an honest node: %d logs, %v", len(logs), err)
	}
	if logs, _, err := w.read(filter, liar, w.Net.URL()); err != nil || len(logs) != 2 {
		t.Errorf("of a liar and an honest node: %d logs, %v", len(logs), err)
	}
	byHash := chaintest.Bend(t, w.Net.URL(), func(q chaintest.Request, result json.RawMessage) json.RawMessage {
		if q.Method == "eth_getBlockReceipts" {
			return result
		}
		return omitFirst(t)(q, result)
	})
	if logs, _, err := w.read(filter, byHash); err != nil || len(logs) != 2 {
		t.Errorf("of a node that omits logs, but no receipts: %d logs, %v", len(logs), err)
	}
}

// TestUnsupportedReceipts: if no node supports block receipts, the client accepts the logs and does not ask again each
// time. A node that supports receipts is asked after one that does not.
func TestUnsupportedReceipts(t *testing.T) {
	t.Parallel()
	w, filter := newTwins(t)
	asked := 0
	refusing := chaintest.Bend(t, w.Net.URL(), func(q chaintest.Request, result json.RawMessage) json.RawMessage {
		if q.Method == "eth_getBlockReceipts" {
			asked++
			return nil
		}
		return omitFirst(t)(q, result)
	})
	logs, c, err := w.read(filter, refusing)
	if err != nil || len(logs) != 1 || asked != 1 {
		t.Errorf("%d logs, %v, asked %d times", len(logs), err, asked)
	}
	if _, err := completeRange(w.Ctx, c, filter); err != nil || asked != 1 {
		t.Errorf("again: %v, asked %d times", err, asked)
	}
	if logs, _, err := w.read(filter, refusing, w.Net.URL()); err != nil || len(logs) != 2 {
		t.Errorf("with a node that has receipts: %d logs, %v", len(logs), err)
	}
}

// TestExamineReceipts: receipts prove a block's logs only if all receipts are present. The type of a receipt does not
// matter.
func TestExamineReceipts(t *testing.T) {
	t.Parallel()
	w, filter := newTwins(t)
	blocks, err := w.client.readBlooms(w.Ctx, []uint64{uint64(filter.ToBlock)})
	heraldtest.Must(t, err)
	b := blocks[0]
	receipts := func(t *testing.T) (rs provableReceipts) {
		if err := w.client.SendCall(w.Ctx, "test", &rs, "eth_getBlockReceipts", b.Hash); err != nil || len(rs) != 2 {
			t.Fatalf("%d receipts, %v", len(rs), err)
		}
		return rs
	}
	ownKind := *b // a chain that computes its receipts root differently
	ownKind.ReceiptsRoot = common.Hash{1}
	fullBloom := ownKind
	fullBloom.Bloom = new(types.Bloom)
	for i := range fullBloom.Bloom {
		fullBloom.Bloom[i] = 0xff
	}
	for name, c := range map[string]struct {
		block  *Header
		change func(provableReceipts) provableReceipts
		proven bool
		failed error // errAny: any error
		logs   int
	}{
		"all": {b, func(rs provableReceipts) provableReceipts { return rs }, true, nil, 2},
		"a log is left out": {b, func(rs provableReceipts) provableReceipts { rs[1].Logs = nil; return rs },
			false, nil, 1},
		"a receipt is left out": {b, func(rs provableReceipts) provableReceipts { return rs[:1] }, false, nil, 1},
		"all logs are left out": {b, func(provableReceipts) provableReceipts { return provableReceipts{} }, false,
			errForgotten, 0},
		"receipts of its own": {&ownKind, func(rs provableReceipts) provableReceipts { return rs }, false, nil, 2},
		"of its own, none there": {&ownKind, func(provableReceipts) provableReceipts { return provableReceipts{} },
			false, errForgotten, 0},
		"a full bloom tells none": {&fullBloom, func(rs provableReceipts) provableReceipts { return rs[:1] }, false,
			nil, 1},
		"the block is not there": {b, func(provableReceipts) provableReceipts { return nil }, false, node.ErrNoBlock, 0},
		"a log is null": {b, func(rs provableReceipts) provableReceipts { rs[1].Logs = append(rs[1].Logs, nil); return rs },
			false, errAny, 0},
		"another block's receipts": {&Header{}, func(rs provableReceipts) provableReceipts { return rs }, false,
			errAny, 0},
		"an unknown type has its logs elsewhere": {b, func(rs provableReceipts) provableReceipts {
			rs[0].Type, rs[0].Logs, rs[1].Logs = 0x79, nil, nil
			return rs
		}, false, nil, 0},
		"an unknown type changes nothing else": {&ownKind, func(rs provableReceipts) provableReceipts {
			rs[0].Type = 0x79
			return rs
		}, false, nil, 2},
	} {
		got, err := c.block.checkReceipts(c.change(receipts(t)))
		if got.Proven != c.proven || err != c.failed && !errors.Is(err, c.failed) &&
			!(c.failed == errAny && err != nil) ||
			err == nil && len(got.Logs) != c.logs {
			t.Errorf("%s: proven %t, %d logs, %v", name, got.Proven, len(got.Logs), err)
		}
	}
}

var errAny = errors.New("any")

// TestUnprovableReceipts: if receipts prove nothing, a node must give the same answer three times. This ends when three
// blocks in a row had no proof within more than a minute. Differing answers are rejected.
func TestUnprovableReceipts(t *testing.T) {
	t.Parallel()
	w, filter := newTwins(t)
	root, asked, omits := regexp.MustCompile(`"receiptsRoot":"0x..`), 0, false
	server := chaintest.Bend(t, w.Net.URL(), func(q chaintest.Request, result json.RawMessage) json.RawMessage {
		switch q.Method {
		case "eth_getBlockByNumber":
			return root.ReplaceAll(result, []byte(`"receiptsRoot":"0xee`))
		case "eth_getBlockReceipts":
			if asked++; omits && asked%2 == 0 {
				return omitFirst(t)(q, result)
			}
		}
		return result
	})
	newest := filter
	newest.FromBlock = newest.ToBlock
	logs, c, err := w.read(newest, server)
	if err != nil || len(logs) != 2 || asked != sameAnswers {
		t.Errorf("%d logs, %v, asked %d times", len(logs), err, asked)
	}
	omits, asked = true, 0
	if logs, err := completeRange(w.Ctx, c, newest); !as[*node.UnavailableError](err) {
		t.Errorf("answers that differ: %d logs, %v", len(logs), err)
	}
	omits = false
	for i := range unprovenInRow + 2 {
		asked = 0
		if logs, err := completeRange(w.Ctx, c, newest); err != nil || len(logs) != 2 {
			t.Errorf("%d logs, %v", len(logs), err)
		}
		if i == unprovenInRow {
			if asked != sameAnswers {
				t.Errorf("after %d blocks without a proof in a second it is asked %d times", unprovenInRow, asked)
			}
			c.proofs.since = c.proofs.since.Add(-unprovenTime)
		}
	}
	heraldtest.Equal(t, fmt.Sprintf("after %d blocks without a proof in a minute it is asked", unprovenInRow), asked, 1)
}

// TestUnknownReceiptsProveNothing: a block with receipts of an unknown form stays unproven. Its logs are accepted, and
// the logs of other blocks in the same request are proven.
func TestUnknownReceiptsProveNothing(t *testing.T) {
	t.Parallel()
	w, filter := newTwins(t)
	w.Feedback()
	filter.ToBlock++
	form := regexp.MustCompile(`"status":"0x1"`)
	asked := 0
	server := chaintest.Bend(t, w.Net.URL(), func(q chaintest.Request, result json.RawMessage) json.RawMessage {
		var receipts []json.RawMessage
		if q.Method != "eth_getBlockReceipts" || json.Unmarshal(result, &receipts) != nil {
			return omitFirst(t)(q, result)
		}
		if len(receipts) == 2 {
			return form.ReplaceAll(result, []byte(`"status":["0x1","0x0"]`)) // one status per phase
		}
		asked++
		return result
	})
	logs, c, err := w.read(filter, server)
	// The first of the two logs is missing, because its block has no proof.
	if err != nil || len(logs) != 2 || asked == 0 || c.proofs.unproven != 0 {
		t.Errorf("%d logs, %v, %d proven, %+v", len(logs), err, asked, c.proofs)
	}
}

// TestProvenLogsReplaceOthers: logs from proven receipts replace logs that the node changed or invented.
func TestProvenLogsReplaceOthers(t *testing.T) {
	t.Parallel()
	w, filter := newTwins(t)
	honest, _, err := w.read(filter, w.Net.URL())
	heraldtest.Must(t, err)
	liar := chaintest.Bend(t, w.Net.URL(), func(q chaintest.Request, result json.RawMessage) json.RawMessage {
		var logs []map[string]json.RawMessage
		if q.Method != "eth_getLogs" || json.Unmarshal(result, &logs) != nil || len(logs) != 2 {
			return result
		}
		invented := maps.Clone(logs[1])
		invented["logIndex"] = json.RawMessage(`"0x63"`)
		logs[0]["data"] = json.RawMessage(`"0x00"`)
		bent, err := json.Marshal(append(logs, invented))
		if err != nil {
			t.Error(err)
		}
		return bent
	})
	logs, _, err := w.read(filter, liar)
	if err != nil || len(logs) != len(honest) {
		t.Fatalf("%d logs, %v", len(logs), err)
	}
	for i := range logs {
		if !bytes.Equal(logs[i].Data, honest[i].Data) || logs[i].Index != honest[i].Index {
			t.Errorf("log %d is %+v", i, logs[i])
		}
	}
}

// completeRange completes a range from which the node omitted all logs.
func completeRange(ctx context.Context, c *Reader, filter Filter) ([]types.Log, error) {
	_, ends, err := c.ReadLogs(ctx, filter)
	if err != nil {
		return nil, err
	}
	return c.CompleteLogs(ctx, filter, ends, nil)
}
