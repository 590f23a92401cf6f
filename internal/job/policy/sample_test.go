package policy_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
)

// The measured values. vouchClients and clients count clients; the others are shares in thousandths of all events.
// topClient and topTen are the shares that the most active client and the ten most active clients wrote.
const (
	vouches      = 664    // events with the tag miner-vouch, the value 1 and the agent 25975
	vouchClients = 62     // clients of the vouches
	clients      = 12_569 // all
	topClient    = 106
	topTen       = 575
	outside      = 4   // values outside 0 to 100
	withFile     = 200 // events with a feedbackURI; not measured
)

// tags are the measured shares of the other frequent tags, in thousandths.
var tags = []struct {
	name  string
	share int
}{{"trust", 84}, {"trustScore", 25}, {"contractRisk", 25}, {"counterparty", 25}, {"activity", 25}, {"longevity", 25},
	{"starred", 23}}

// sample returns n feedback events of chain 8453. The shares of tags, of clients and of values outside 0 to 100 were
// measured on Base between July and August 2026. The same seed returns the same events. The sample assumes that the ten
// most active clients write only vouches, and that the tag, the value and the file are independent of each other.
func sample(seed uint64, n int) []policy.Event {
	r := rand.New(rand.NewPCG(seed, 0))
	events := make([]policy.Event, n)
	for i := range events {
		e := policy.Event{Kind: job.KindNewFeedback, Chain: 8453, HasFile: r.IntN(1000) < withFile}
		if at := r.IntN(1000); at < vouches {
			e.Agent, e.Tag1, e.Value, e.Client = "25975", "miner-vouch", big.NewInt(1), sampleClient(vouchClient(r, at))
		} else {
			e.Agent, e.Client = fmt.Sprint(1+r.IntN(60_000)), sampleClient(vouchClients+r.IntN(clients-vouchClients))
			e.Tag1 = otherTag(at-vouches, r)
			e.Value, e.Decimals = rating(r, e.Tag1)
		}
		events[i] = e
	}
	return events
}

// sampleClient returns the address of a client, from 0. The first ten wrote more than half of the events.
func sampleClient(i int) common.Address {
	return common.BigToAddress(big.NewInt(0xC11E_0000_0000 + int64(i)))
}

// vouchClient returns the client of a vouch. at is uniform in [0, vouches).
func vouchClient(r *rand.Rand, at int) int {
	switch {
	case at < topClient:
		return 0
	case at < topTen:
		return 1 + r.IntN(9)
	}
	return 10 + r.IntN(vouchClients-10)
}

// otherTag returns one of tags by their shares, and for the rest one of 100 rare tags, or none.
func otherTag(at int, r *rand.Rand) string {
	for _, t := range tags {
		if at -= t.share; at < 0 {
			return t.name
		}
	}
	if rare := r.IntN(100); rare > 0 {
		return fmt.Sprintf("rare-%d", rare)
	}
	return ""
}

// rating returns a value and its decimals. Four fifths of the values of trust are 85.
func rating(r *rand.Rand, tag string) (*big.Int, uint8) {
	switch {
	case r.IntN(1000-vouches) < outside: // no vouch is outside
		return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(3+r.IntN(36))), nil), 0
	case tag == "trust" && r.IntN(100) < 79:
		return big.NewInt(85), 0
	}
	decimals := []uint8{0, 1, 2, 18}[r.IntN(4)]
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(decimals)), nil)
	return unit.Mul(unit, big.NewInt(r.Int64N(101))), decimals
}
