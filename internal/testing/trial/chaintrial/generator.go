package chaintrial

import (
	"math/big"
	"math/rand/v2"
	"slices"

	"github.com/ethereum/go-ethereum/common"
)

// The size of the generated world: few enough agents and clients that most pairs have several feedbacks.
const (
	agents     = 60
	clients    = 5
	mostEvents = 20 // in one block
	longText   = 300
)

// place is one feedback of a client about an agent, or one validation request.
type place struct{ agent, client, index uint64 }

// Event is one generated event. Emitter is the registry that logs it.
type Event struct {
	Emitter registry
	Log     Log

	gives   *place // the feedback that it gives
	revokes *place // the feedback that it revokes
}

// Generator generates the events of one branch, block by block. It drops blocks that a reorg removes.
type Generator struct {
	random  *rand.Rand
	blocks  [][]Event // blocks of the branch
	pending []Event   // events of a dropped branch that will occur again in later blocks

	given   map[place]bool // feedback of the branch or in pending
	revoked map[place]bool
	live    []place // feedback that may be revoked or responded to; a part of it may be gone
}

// NewGenerator returns a generator. The seed determines all events.
func NewGenerator(seed uint64) *Generator {
	return &Generator{random: rand.New(rand.NewPCG(seed, 1)), given: map[place]bool{}, revoked: map[place]bool{}}
}

// Next generates a block with average events on average, and at most twice as many.
func (g *Generator) Next(average int) ([]Event, error) {
	n := g.random.IntN(min(2*average, mostEvents) + 1)
	var block []Event
	for range n {
		e, err := g.makeEvent()
		if err != nil {
			return nil, err
		}
		block = append(block, e)
	}
	g.blocks = append(g.blocks, block)
	return block, nil
}

// Blocks returns the number of blocks of the branch.
func (g *Generator) Blocks() int { return len(g.blocks) }

// Newest returns the events of the newest depth blocks, for a reorg that mines them again.
func (g *Generator) Newest(depth int) [][]Event { return g.blocks[len(g.blocks)-depth:] }

// Fold moves the events of the newest depth blocks into one block.
func (g *Generator) Fold(depth int) {
	all := slices.Concat(g.Newest(depth)...)
	g.blocks = append(g.blocks[:len(g.blocks)-depth], all)
}

// Drop removes the newest depth blocks. Most of their events occur again in later blocks of Next, unchanged but at
// another position. The others are gone, and other feedback reuses their feedback indexes.
func (g *Generator) Drop(depth int) {
	dropped := g.Newest(depth)
	g.blocks = g.blocks[:len(g.blocks)-depth]
	for _, block := range dropped {
		for _, e := range block {
			if g.random.IntN(10) < 6 {
				g.pending = append(g.pending, e)
				continue
			}
			if e.gives != nil {
				delete(g.given, *e.gives)
			}
			if e.revokes != nil {
				delete(g.revoked, *e.revokes)
			}
		}
	}
}

// AddEmpty adds blocks without events, which a reorg created.
func (g *Generator) AddEmpty(n int) { g.blocks = append(g.blocks, make([][]Event, n)...) }

// makeEvent generates an event, or takes one from pending.
func (g *Generator) makeEvent() (Event, error) {
	if len(g.pending) > 0 && g.random.IntN(2) == 0 {
		e := g.pending[0]
		g.pending = g.pending[1:]
		return e, nil
	}
	return g.make(g.random.IntN(len(forms)))
}

// make generates an event of a form. If it needs feedback and there is no such feedback, it generates feedback
// instead.
func (g *Generator) make(which int) (Event, error) {
	f := forms[which]
	e := Event{Emitter: f.by}
	at := place{agent: g.random.Uint64N(agents), client: g.random.Uint64N(clients)}
	switch {
	case f.name == "NewFeedback":
		if f.has("index") {
			at.index = 1
			for g.given[at] {
				at.index++
			}
			given := at
			g.given[given], e.gives = true, &given
			g.live = append(g.live, given)
		}
	case f.name == "FeedbackRevoked" || f.name == "ResponseAppended":
		known, ok := g.pick(f.name == "FeedbackRevoked")
		if !ok {
			return g.make(0)
		}
		at = known
		if f.name == "FeedbackRevoked" {
			g.revoked[known], e.revokes = true, &known
		}
	}
	counts := f.name == "NewFeedback" && !f.has("index")
	if counts {
		at.client += clients // separate clients, because an emitter does not count feedback that contains its index
	}
	broken := g.random.IntN(50) == 0 // beyond a registry's limits, so that it becomes no job
	var err error
	memory := map[string]any{} // tag1 occurs twice, as a topic and as text
	e.Log, err = f.encode(func(name, of string) any {
		if _, ok := memory[name]; !ok {
			memory[name] = g.value(name, of, at, broken)
		}
		return memory[name]
	})
	e.Log.Counts = counts
	return e, err
}

// pick chooses a feedback of the branch.
func (g *Generator) pick(toRevoke bool) (place, bool) {
	for range 20 {
		if len(g.live) == 0 {
			break
		}
		p := g.live[g.random.IntN(len(g.live))]
		if g.given[p] && !(toRevoke && g.revoked[p]) {
			return p, true
		}
	}
	return place{}, false
}

// value generates a parameter's value.
func (g *Generator) value(name, of string, at place, broken bool) any {
	switch name {
	case "agentId":
		return new(big.Int).SetUint64(at.agent)
	case "client":
		return addressOf(1000 + at.client)
	case "index":
		return at.index
	case "decimals":
		if broken {
			return uint8(19 + g.random.IntN(200))
		}
		return uint8(g.random.IntN(19))
	case "score", "response":
		if broken {
			return uint8(101 + g.random.IntN(155))
		}
		return uint8(g.random.IntN(101))
	case "value":
		return new(big.Int).Sub(new(big.Int).SetUint64(g.random.Uint64()), new(big.Int).SetUint64(g.random.Uint64()))
	}
	switch of {
	case "uint256":
		return new(big.Int).SetUint64(g.random.Uint64())
	case "address":
		return addressOf(2000 + g.random.Uint64N(20))
	case "bytes32":
		return [32]byte(g.bytes(32))
	case "bytes":
		return g.bytes(g.random.IntN(longText))
	}
	return g.text()
}

// text generates a string: plain, empty, long, or one that Postgres cannot store.
func (g *Generator) text() string {
	switch g.random.IntN(8) {
	case 0:
		return ""
	case 1:
		return string(g.bytes(g.random.IntN(longText)))
	case 2:
		return "a\x00b\xffc \u202e<script> {{score}}"
	}
	return "word-" + big.NewInt(g.random.Int64N(1000)).String()
}

func (g *Generator) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(g.random.Uint64())
	}
	return b
}

func addressOf(n uint64) common.Address { return common.BigToAddress(new(big.Int).SetUint64(n)) }
