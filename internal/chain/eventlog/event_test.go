package eventlog

import (
	"encoding/json"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestJobRefuses(t *testing.T) {
	t.Parallel()
	d := erc8004.Deployment{Identity: common.Address{3}}
	unnumbered, request := feedback(), feedback()
	unnumbered.HasIndex, request.Kind = false, erc8004.ValidationRequest
	for want, e := range map[error]erc8004.Event{errNoIndex: unnumbered, errNotDelivered: request} {
		_, err := Job(e, 77777, d, 1, limits)
		heraldtest.Fails(t, string(e.Kind), err, want)
	}
	long := feedback()
	long.FeedbackURI = strings.Repeat("\x00", 50_000) // each NUL takes six bytes in JSON
	if _, err := Job(long, 77777, d, 1, limits); !as[*job.Refusal](err) {
		t.Errorf("a job above the size limit: %v", err)
	}
}

// feedback returns an event that makes a valid job.
func feedback() erc8004.Event {
	return erc8004.Event{Kind: erc8004.NewFeedback, HasIndex: true, FeedbackIndex: 1, AgentID: big.NewInt(1), Value: big.NewInt(90),
		Address: common.Address{1}, Client: common.Address{2}}
}

// TestTimeOfAReplacedBlock: if the node no longer has the block of a log, the range has to be read again.
func TestTimeOfAReplacedBlock(t *testing.T) {
	t.Parallel()
	n := chaintest.NewNode(t, 1)
	n.Set(nil, chaintest.AnswerTo("eth_getBlockByHash", json.RawMessage("null"), nil))
	_, err := newReader(t, 1, false, n.URL).MakeEntries(t.Context(), []types.Log{{BlockHash: n.Hash(3)}}, erc8004.Deployment{}, limits)
	heraldtest.Fails(t, "the error", err, ErrReorganised)
}

// TestJobOfImpossibleTime: a node's false timestamp does not make an event invalid.
func TestJobOfImpossibleTime(t *testing.T) {
	t.Parallel()
	e := feedback()
	for at, want := range map[uint64]int64{1: 1, job.MaxTimestamp: job.MaxTimestamp, 1_700_000_000_000: 0, math.MaxUint64: 0} {
		j, err := Job(e, 77777, erc8004.Deployment{Identity: common.Address{3}}, at, limits)
		if err != nil || j.Timestamp != want {
			t.Errorf("time %d: %d, %v", at, j.Timestamp, err)
		}
	}
}

func TestJobOfArbitraryStrings(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for b := range 256 {
		all.WriteByte(byte(b))
	}
	e := erc8004.Event{Kind: erc8004.NewFeedback, HasIndex: true, FeedbackIndex: 1<<64 - 1, AgentID: new(big.Int).Lsh(big.NewInt(1), 255), Value: big.NewInt(-1),
		Tag1: all.String(), Tag2: `","x":"`, Address: common.Address{1}, Client: common.Address{2}}
	j, err := Job(e, 77777, erc8004.Deployment{Identity: common.Address{3}}, 1, limits)
	if err != nil || j.Tag2 != e.Tag2 || j.FeedbackIndex != e.FeedbackIndex || len(j.Sanitized) != 1 {
		t.Fatalf("the job %+v, %v: want tag1 sanitized and the rest as it is", j, err)
	}
	// The stored JSON is a valid job, as an enqueuer could have written it.
	j.Sanitized = nil
	text, err := json.Marshal(j)
	heraldtest.Must(t, err)
	again, err := job.Parse(text, limits)
	if field, differs := again.Conflict(j); err != nil || differs || again.Key() != j.Key() {
		t.Errorf("%s is read as %+v, %v: differs in %q", text, again, err, field)
	}
}

// TestSort: logs are sorted, and a repeated log is removed. Some nodes count logIndex in each transaction, so only logs
// with the same position in the same transaction are the same.
func TestSort(t *testing.T) {
	t.Parallel()
	var logs []types.Log
	for _, at := range [][3]uint{{5, 0, 0}, {4, 2, 0}, {4, 1, 1}, {4, 1, 0}, {5, 0, 0}, {4, 2, 0}, {4, 1, 0}} {
		logs = append(logs, types.Log{BlockNumber: uint64(at[0]), TxIndex: at[1], TxHash: common.Hash{byte(at[1])}, Index: at[2]})
	}
	var got [][3]uint
	for _, l := range Sort(logs) {
		got = append(got, [3]uint{uint(l.BlockNumber), l.TxIndex, l.Index})
	}
	heraldtest.Equal(t, "blocks, transactions and indexes", got, [][3]uint{{4, 1, 0}, {4, 1, 1}, {4, 2, 0}, {5, 0, 0}})
}

// FuzzJob: the job of any log has the log's texts, apart from repaired characters, and its JSON is read as the same job.
func FuzzJob(f *testing.F) {
	words := func(values ...int64) (out []byte) {
		for _, v := range values {
			out = append(out, common.BigToHash(big.NewInt(v)).Bytes()...)
		}
		return out
	}
	text := append(words(4), "a\x00\xe2\x82"+strings.Repeat("\x00", 28)...)
	for i := range erc8004.Topics() {
		f.Add(uint8(i), words(1, 2, 3), append(words(1, 5, 0, 256, 256, 256, 256, 0), text...))
		f.Add(uint8(i), words(1, 2, 3), append(words(64, 0), text...))
	}
	f.Fuzz(func(t *testing.T, which uint8, topics, data []byte) {
		all := erc8004.Topics()
		l := types.Log{Address: common.Address{1}, TxHash: common.Hash{1}, Topics: []common.Hash{all[int(which)%len(all)]}, Data: data}
		for ; len(topics) >= 32 && len(l.Topics) < 4; topics = topics[32:] {
			l.Topics = append(l.Topics, common.Hash(topics[:32]))
		}
		e, err := erc8004.Decode(l)
		if err != nil {
			return
		}
		j, err := Job(e, 77777, erc8004.Deployment{Identity: common.Address{3}}, 1, limits)
		if err != nil {
			return
		}
		for _, c := range [][2]string{{j.Tag1, e.Tag1}, {j.Tag2, e.Tag2}, {j.Endpoint, e.Endpoint}, {j.FeedbackURI, e.FeedbackURI}, {j.ResponseURI, e.ResponseURI}, {j.Tag, e.Tag}} {
			if !erc8004.SameText(c[0], c[1]) {
				t.Errorf("%q is read as %q", c[1], c[0])
			}
		}
		j.Sanitized = nil
		raw, err := json.Marshal(j)
		heraldtest.Must(t, err)
		again, err := job.Parse(raw, limits)
		if field, differs := again.Conflict(j); err != nil || differs || again.Key() != j.Key() || again.OrderKey() != j.OrderKey() {
			t.Errorf("%s is read as %+v, %v: differs in %q", raw, again, err, field)
		}
	})
}
