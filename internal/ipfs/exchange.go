package ipfs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ipfs/boxo/verifcid"
	"github.com/ipfs/go-cid"
	"github.com/multiformats/go-multihash"

	blocks "github.com/ipfs/go-block-format"

	"github.com/agentherald/herald/internal/base/netguard"
)

// maxVisits bounds how many blocks a fetch visits, repetitions included. Nine blocks can fan out to 10^12 visits
// without a single byte of content, so a limit on bytes is not sufficient.
const maxVisits = 4096

// parallelBlocks is how many blocks of one file are requested at a time. It also bounds how many of a gateway's
// permits one file can hold if no gateway has its blocks.
const parallelBlocks = 2

// maxOverhead bounds the bytes of a document's blocks that are not its content: directories, and the links to its
// parts. It is the size of the largest directory that is not sharded.
const maxOverhead = maxBlock

// session is one fetch with its budgets, its blocks and its gateways. boxo's directories read their nodes from it.
// The session keeps its first real failure, which cancels the fetch, even if boxo returns another error.
type session struct {
	shown string
	limit int64

	// Used only by the goroutine that walks the blocks.
	plain    cid.Cid // a root block that is itself the document; undefined if there is no such root
	followed int     // number of links that were followed

	ctx    context.Context
	cancel context.CancelCauseFunc

	gateways  []*gateway
	allowance map[*gateway]*atomic.Int64 // bytes that each gateway may still send
	try       time.Duration
	hedge     time.Duration
	whole     time.Duration // time that the fetch may take; 0 if it is unlimited

	mu     sync.Mutex
	blocks map[string]held // by multihash
	seen   map[string]bool // multihashes of the blocks that the walk read
	read   int64           // total bytes of the blocks in seen
	visits int
	links  int    // links of all visited blocks
	from   string // the gateway that sent the walk's first block
}

// held is a verified block and the gateway that sent it.
type held struct {
	data []byte
	from string
}

func (f *Fetcher) newSession(parent context.Context, shown string, limit int64) *session {
	whole := time.Duration(0)
	if deadline, ok := parent.Deadline(); ok {
		whole = time.Until(deadline)
	}
	s := &session{
		shown: shown, limit: limit, gateways: f.gateways, try: f.cfg.TryTimeout, hedge: f.cfg.Hedge, whole: whole,
		allowance: make(map[*gateway]*atomic.Int64, len(f.gateways)),
		blocks:    make(map[string]held),
		seen:      make(map[string]bool),
	}
	for _, g := range f.gateways {
		s.allowance[g] = new(atomic.Int64)
		// So a hostile gateway can use up only its own share. One half is for a CAR, and one for raw blocks.
		s.allowance[g].Store(2 * s.byteBudget())
	}
	s.ctx, s.cancel = context.WithCancelCause(parent)
	return s
}

// byteBudget returns the maximum total size of the document's blocks. All of them are in memory at a time.
func (s *session) byteBudget() int64 { return s.limit + maxOverhead }

// end cancels requests that are still running. askGateways waits for its own requests.
func (s *session) end() { s.cancel(context.Canceled) }

// fail ends the fetch with err, unless it has already failed.
func (s *session) fail(err error) { s.cancel(err) }

// failureCause returns the fetch's own error, or nil if it has not failed.
func (s *session) failureCause() error {
	if s.ctx.Err() == nil {
		return nil
	}
	return context.Cause(s.ctx)
}

// refuseBlock fails for a block with an insecure hash or an unsupported codec before the block is requested. Otherwise
// boxo would decode any codec that is linked into the program, and two MiB of dag-cbor grow a hundredfold. A root that
// is itself the document is allowed: decodeCID has checked its hash, and it is not decoded.
func (s *session) refuseBlock(c cid.Cid) error {
	if c.Defined() && c.Equals(s.plain) {
		return nil
	}
	if err := verifcid.ValidateCid(bindingHashes(), c); err != nil {
		return err
	}
	if codec := c.Type(); codec != cid.Raw && codec != cid.DagProtobuf {
		err := &InvalidError{URI: s.shown,
			Why: fmt.Sprintf("one of its blocks is of codec 0x%x; only raw and dag-pb are read", codec)}
		s.fail(err)
		return err
	}
	return nil
}

// visitBlock counts one visit of a block and its links. At the first visit it also counts the block's bytes.
func (s *session) visitBlock(b blocks.Block) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := string(b.Cid().Hash())
	s.visits++
	s.links += countLinks(b) // a block that is read again is also decoded again
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

// storeBlock stores a verified block. The first gateway that sent it is recorded.
func (s *session) storeBlock(from *gateway, b blocks.Block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := string(b.Cid().Hash())
	if _, known := s.blocks[key]; !known {
		s.blocks[key] = held{b.RawData(), from.host()}
	}
}

// storedBlock returns a block of this session, with the codec of c. An identity CID contains its block.
func (s *session) storedBlock(c cid.Cid) (blocks.Block, bool) {
	s.mu.Lock()
	h, ok := s.blocks[string(c.Hash())]
	s.mu.Unlock()
	if d, err := multihash.Decode(c.Hash()); err == nil && d.Code == multihash.IDENTITY {
		h.data, ok = d.Digest, true
	}
	if !ok {
		return nil, false
	}
	b, err := blocks.NewBlockWithCid(h.data, c)
	return b, err == nil
}

// readBlock returns a block of this session, or fetches it from the gateways, and counts the visit.
func (s *session) readBlock(ctx context.Context, c cid.Cid) (blocks.Block, error) {
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

// fetchBlock fetches one block from the gateways. Any failure ends the fetch, because a file with a missing block is
// incomplete.
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
			// The context was not cancelled, so the block is really missing.
			s.fail(err)
		}
		return nil, err
	}
	return got, nil
}

// askGateways asks the gateways one question. It starts with the first gateway, and asks the next one after a failure
// or after the hedge delay. The first answer wins; the other requests are cancelled, and askGateways waits for them
// to end. Errors: *NotFoundError if every gateway reported that, otherwise *UnavailableError or the error of a
// context.
func (s *session) askGateways(ctx context.Context, question func(context.Context, *gateway) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()

	verdicts := &verdicts{shown: s.shown}
	var todo, demoted []*gateway // in the operator's order
	for _, g := range s.gateways {
		switch wait := g.restTime(); {
		case wait > 0:
			verdicts.add(g, &statusError{retry: wait})
		case s.allowance[g].Load() <= 0:
			verdicts.add(g, errSpent)
		case g.isDemoted():
			demoted = append(demoted, g)
		default:
			todo = append(todo, g)
		}
	}
	todo = append(todo, demoted...)
	type answer struct {
		g   *gateway
		err error
	}
	answers := make(chan answer, len(todo))
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel() // runs before the Wait above

	hedge := time.NewTimer(s.hedge)
	defer hedge.Stop()
	var running []*gateway // in the order in which they were asked
	startNext := func() {
		if len(todo) == 0 {
			return
		}
		hedge.Reset(s.hedge)
		g := todo[0]
		todo = todo[1:]
		running = append(running, g)
		asked.Go(func() {
			err := g.acquire(ctx) // waiting for a permit does not count against the gateway's time
			if err == nil {
				ctx, cancel := context.WithTimeout(ctx, s.try)
				err = question(ctx, g)
				g.release()
				cancel()
			}
			answers <- answer{g, err}
		})
	}
	startNext()
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
			startNext()
		case <-hedge.C:
			startNext()
		case <-ctx.Done():
			if err := s.failureCause(); err != nil {
				return err
			}
			return ctx.Err()
		}
	}
	return verdicts.err()
}

// verdicts collects the answers of the gateways.
type verdicts struct {
	shown  string
	absent []string
	other  []string
	causes []error // of other
	retry  time.Duration
}

// add records a gateway's failure.
func (v *verdicts) add(g *gateway, err error) {
	if errors.Is(err, errAbsent) {
		v.absent = append(v.absent, g.host())
		return
	}
	// The shortest wait decides when a retry makes sense. A failure without a stated wait may end at any time.
	var wait time.Duration
	if status, ok := errors.AsType[*statusError](err); ok {
		wait = status.retry
	}
	if len(v.other) == 0 || wait < v.retry {
		v.retry = wait
	}
	// The text is shortened, because the gateway chose it.
	err = netguard.Explain("it", g.try, err)
	v.other, v.causes = append(v.other, shortenText("gateway "+g.host()+": "+err.Error())), append(v.causes, err)
}

// err returns *NotFoundError if every gateway lacks the content, and otherwise *UnavailableError.
func (v *verdicts) err() error {
	switch {
	case len(v.other) > 0:
		return &UnavailableError{URI: v.shown, RetryAfter: v.retry,
			Err: &netguard.FailureError{Text: strings.Join(v.other, "; "), Cause: errors.Join(v.causes...)}}
	case len(v.absent) > 0:
		return &NotFoundError{URI: v.shown, Asked: v.absent}
	}
	return &UnavailableError{URI: v.shown, Err: errors.New("no IPFS gateway is configured; set IPFS_GATEWAYS")}
}

// isDecodable reports whether a verified link may name the block: its hash function is secure, and it is not an
// identity CID, whose bytes are in the link.
func isDecodable(c cid.Cid) bool {
	return c.Prefix().MhType != multihash.IDENTITY && verifcid.ValidateCid(bindingHashes(), c) == nil
}
