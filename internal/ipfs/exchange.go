package ipfs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ipfs/boxo/verifcid"
	"github.com/ipfs/go-cid"
	"github.com/multiformats/go-multihash"

	blocks "github.com/ipfs/go-block-format"

	"github.com/agentherald/herald/internal/netguard"
)

// maxVisits bounds how often a fetch looks at a block. Nine blocks can fan out
// to a million million visits without yielding a byte; a byte limit does not
// stop that.
const maxVisits = 4096

// parallelBlocks is how many blocks of one file are asked for at a time: so many of a gateway's places can a file hold
// whose blocks nobody has.
const parallelBlocks = 2

// session is one fetch: its budgets, its blocks and its gateways. boxo's directories read their nodes from it. The first
// real failure is kept here and cancels the fetch, whatever boxo makes of it.
type session struct {
	shown string
	limit int64

	// The walk's own.
	plain    cid.Cid // a root that is the document as it stands, undefined: none
	followed int     // links that it went along

	ctx    context.Context
	cancel context.CancelCauseFunc

	gateways  []*gateway
	allowance map[*gateway]*allowance
	try       time.Duration
	hedge     time.Duration
	whole     time.Duration // that the fetch may take; 0: as long as it takes

	mu     sync.Mutex
	blocks map[string]held // by multihash
	seen   map[string]bool // multihashes that the walk has read
	read   int64           // bytes of the blocks in seen
	visits int
	links  int    // of all visits together
	from   string // the gateway that brought the walk's first block
}

// held is a verified block and the gateway that brought it.
type held struct {
	blocks.Block
	from string
}

func newSession(parent context.Context, shown string, limit int64, gateways []*gateway, try,
	hedge time.Duration) *session {
	whole := time.Duration(0)
	if deadline, ok := parent.Deadline(); ok {
		whole = time.Until(deadline)
	}
	s := &session{
		shown: shown, limit: limit, gateways: gateways, try: try, hedge: hedge, whole: whole,
		allowance: make(map[*gateway]*allowance, len(gateways)),
		blocks:    make(map[string]held),
		seen:      make(map[string]bool),
	}
	for _, g := range gateways {
		s.allowance[g] = &allowance{left: s.byteBudget()}
	}
	s.ctx, s.cancel = context.WithCancelCause(parent)
	return s
}

// byteBudget is the most bytes that the document's blocks may have, and the most
// that one gateway may send.
func (s *session) byteBudget() int64 { return 2*s.limit + 4<<20 }

// end stops requests that are still running; ask waits for its own.
func (s *session) end() { s.cancel(context.Canceled) }

// fail ends the fetch with err, unless it has failed already.
func (s *session) fail(err error) { s.cancel(err) }

// failureCause is the fetch's own error, nil while there is none.
func (s *session) failureCause() error {
	if s.ctx.Err() == nil {
		return nil
	}
	return context.Cause(s.ctx)
}

// refuseBlock fails for a block of a codec that is not read, before it is asked for: boxo decodes whatever codec is
// linked into the program, and two MiB of dag-cbor become a hundred times as much. A root that is a document by itself
// is not decoded.
func (s *session) refuseBlock(c cid.Cid) error {
	if codec := c.Type(); codec != cid.Raw && codec != cid.DagProtobuf && !c.Equals(s.plain) {
		err := &InvalidError{URI: s.shown, Why: fmt.Sprintf("one of its blocks is of codec 0x%x; only raw and dag-pb are read", codec)}
		s.fail(err)
		return err
	}
	return nil
}

// visitBlock counts one look at a block, its links, and its bytes when it is the first.
func (s *session) visitBlock(b blocks.Block) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := string(b.Cid().Hash())
	s.visits++
	s.links += countLinks(b) // of a block that is read again too: it is decoded again
	if !s.seen[key] {
		s.seen[key] = true
		s.read += int64(len(b.RawData()))
		if s.from == "" {
			s.from = s.blocks[key].from
		}
	}
	var err error
	switch {
	case s.visits > maxVisits:
		err = &TooLargeError{URI: s.shown, Limit: s.limit,
			Why: fmt.Sprintf("more than %d blocks have to be read", maxVisits)}
	case s.links > maxLinks:
		err = s.tooManyLinks()
	case s.read > s.byteBudget():
		err = &TooLargeError{URI: s.shown, Limit: s.limit,
			Why: fmt.Sprintf("its blocks have more than %d bytes", s.byteBudget())}
	default:
		return nil
	}
	s.fail(err)
	return err
}

func (s *session) tooManyLinks() error {
	return &TooLargeError{URI: s.shown, Limit: s.limit,
		Why: fmt.Sprintf("its blocks have more than %d links", maxLinks)}
}

func (s *session) storeBlock(from *gateway, b blocks.Block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := string(b.Cid().Hash())
	if _, known := s.blocks[key]; !known {
		s.blocks[key] = held{b, from.host()}
	}
}

// storedBlock returns a block that is here, under the codec that c asks for.
func (s *session) storedBlock(c cid.Cid) (blocks.Block, bool) {
	if c.Prefix().MhType == multihash.IDENTITY {
		if d, err := multihash.Decode(c.Hash()); err == nil {
			b, err := blocks.NewBlockWithCid(d.Digest, c)
			return b, err == nil
		}
		return nil, false
	}
	s.mu.Lock()
	h, ok := s.blocks[string(c.Hash())]
	s.mu.Unlock()
	if !ok {
		return nil, false
	}
	if h.Cid().Equals(c) {
		return h.Block, true
	}
	b, err := blocks.NewBlockWithCid(h.RawData(), c)
	return b, err == nil
}

// readBlock returns a block that is here, or brings it from the gateways, and counts the look at it.
func (s *session) readBlock(ctx context.Context, c cid.Cid) (blocks.Block, error) {
	if err := verifcid.ValidateCid(bindingHashes(), c); err != nil {
		return nil, err
	}
	if err := s.failureCause(); err != nil {
		return nil, err
	}
	if err := s.refuseBlock(c); err != nil {
		return nil, err
	}
	block, ok := s.storedBlock(c)
	if !ok {
		var err error
		if block, err = s.fetchBlock(ctx, c); err != nil {
			return nil, err
		}
	}
	if err := s.visitBlock(block); err != nil {
		return nil, err
	}
	return block, nil
}

// fetchBlock brings one block from the gateways. Whatever it fails with ends the fetch: a file with a block missing is
// no file.
func (s *session) fetchBlock(ctx context.Context, c cid.Cid) (blocks.Block, error) {
	var once sync.Once
	var got blocks.Block
	err := s.askGateways(ctx, func(ctx context.Context, g *gateway) error {
		b, err := g.fetchBlock(ctx, c, s.allowance[g])
		if err == nil {
			once.Do(func() { got = b })
			s.storeBlock(g, b)
		}
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			// Not a read-ahead that the reader gave up: the block is missing.
			s.fail(err)
		}
		return nil, err
	}
	return got, nil
}

// askGateways puts one question to the gateways: to the first at once, to the next when
// one fails or after the hedge delay. The first answer wins and the others are
// cancelled and waited for. Errors: *NotFoundError when every gateway said so,
// else *UnavailableError, or the end of a context.
func (s *session) askGateways(ctx context.Context, question func(context.Context, *gateway) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()

	var (
		verdicts = &verdicts{shown: s.shown}
		todo     []*gateway
	)
	for _, g := range orderGateways(s.gateways) {
		switch wait := g.restTime(); {
		case wait > 0:
			verdicts.add(g, &restingError{wait: wait})
		case s.allowance[g].isSpent():
			verdicts.add(g, errSpent)
		default:
			todo = append(todo, g)
		}
	}
	type answer struct {
		g   *gateway
		err error
	}
	answers := make(chan answer, len(todo))
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel() // before the wait above

	var running []*gateway // in the order in which they were asked
	start := func() {
		g := todo[0]
		todo = todo[1:]
		running = append(running, g)
		asked.Go(func() {
			err := g.acquire(ctx) // the wait for a place is not the gateway's
			if err == nil {
				ctx, cancel := context.WithTimeout(ctx, s.try)
				err = question(ctx, g)
				g.release()
				g.recordResult(ctx, err)
				cancel()
			}
			answers <- answer{g, err}
		})
	}
	hedge := time.NewTimer(s.hedge)
	defer hedge.Stop()
	if len(todo) > 0 {
		start()
	}
	for len(running) > 0 {
		select {
		case a := <-answers:
			i := slices.Index(running, a.g)
			if a.err == nil {
				for _, slower := range running[:i] {
					slower.recordOutrun()
				}
				return nil
			}
			running = slices.Delete(running, i, i+1)
			verdicts.add(a.g, a.err)
			if len(todo) > 0 {
				start()
				hedge.Reset(s.hedge)
			}
		case <-hedge.C:
			if len(todo) > 0 {
				start()
				hedge.Reset(s.hedge)
			}
		case <-ctx.Done():
			if err := s.failureCause(); err != nil {
				return err
			}
			return ctx.Err()
		}
	}
	return verdicts.err()
}

// orderGateways puts gateways that lied lately behind the others, else keeps the
// operator's order.
func orderGateways(in []*gateway) []*gateway {
	out := make([]*gateway, 0, len(in))
	var last []*gateway
	for _, g := range in {
		if g.isDemoted() {
			last = append(last, g)
		} else {
			out = append(out, g)
		}
	}
	return append(out, last...)
}

// verdicts sums up what the gateways answered.
type verdicts struct {
	shown  string
	absent []string
	other  []error
	retry  time.Duration
}

func (v *verdicts) add(g *gateway, err error) {
	if errors.Is(err, errAbsent) {
		v.absent = append(v.absent, g.host())
		return
	}
	// The shortest wait decides when asking again makes sense; a failure
	// without one may be over at once.
	var wait time.Duration
	var status *statusError
	var resting *restingError
	switch {
	case errors.As(err, &status):
		wait = status.retry
	case errors.As(err, &resting):
		wait = resting.wait
	}
	if len(v.other) == 0 || wait < v.retry {
		v.retry = wait
	}
	v.other = append(v.other, explainVerdict(g, err))
}

func (v *verdicts) err() error {
	switch {
	case len(v.other) > 0:
		err := v.other[0]
		for _, e := range v.other[1:] {
			err = fmt.Errorf("%w; %w", err, e) // one line, unlike errors.Join
		}
		return &UnavailableError{URI: v.shown, RetryAfter: v.retry, Err: err}
	case len(v.absent) > 0:
		return &NotFoundError{URI: v.shown, Asked: v.absent}
	}
	return &UnavailableError{URI: v.shown, Err: errors.New("no IPFS gateway is configured; set IPFS_GATEWAYS")}
}

// explainVerdict is a gateway's failure as it is kept: its words are a stranger's, and may be many.
func explainVerdict(g *gateway, err error) error {
	text := shortenText("gateway " + g.host() + ": " + netguard.Explain("it", g.try, err).Error())
	for _, kind := range []error{errBusy, errLied, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, kind) {
			return &verdictError{text, kind}
		}
	}
	return errors.New(text)
}

type verdictError struct {
	text string
	kind error
}

func (e *verdictError) Error() string { return e.text }
func (e *verdictError) Unwrap() error { return e.kind }

// isDecodable tells whether a block may be named by a link of ours: a hash
// function that binds, and not an identity, whose bytes are in the link.
func isDecodable(c cid.Cid) bool {
	return c.Prefix().MhType != multihash.IDENTITY && verifcid.ValidateCid(bindingHashes(), c) == nil
}
