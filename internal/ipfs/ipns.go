package ipfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/ipfs/boxo/ipns"

	"github.com/agentherald/herald/internal/base/netguard"
)

const (
	// maxHops is how many names may lead to one another.
	maxHops = 8
	// recordGateways is how many gateways are asked for a name's record at first, because any of them can replay an
	// old one.
	recordGateways = 4
	// longestName and shortestName bound how long the content of a name is cached. Agents and clients publish below a
	// name again before an event refers to it, so a longer TTL of the record is not followed. longestName is used for
	// domains, whose TTL the system's resolver does not return, and for records without a TTL.
	longestName  = time.Minute
	shortestName = 10 * time.Second
)

// nameRecord is the content that a name leads to.
type nameRecord struct {
	value    string // /ipfs/CID[/path] or /ipns/NAME[/path]
	sequence uint64 // of an IPNS record
	ttl      time.Duration
}

// followName resolves an ipns name to its current content. The content is verified against its CID. A key's record is
// verified against the key's signature. The content of a domain is not verified: dnsLink is true if DNS named it.
//
// Errors: *NoDocumentError, *NotFoundError, *UnavailableError, *InvalidError.
func (f *Fetcher) followName(ctx context.Context, ref *reference) (target *reference, dnsLink bool, err error) {
	target = ref
	for range maxHops {
		if target.source == SourceCID {
			break
		}
		name := canonicalName(target.name)
		found, ok := f.names.get(name, f.now())
		if !ok {
			if found, err = f.lookUp(ctx, name, ref.shown); err != nil {
				return nil, dnsLink, err
			}
		}
		dnsLink = dnsLink || !isKey(name)
		next, err := parseImmutable("", found.value, ref.shown)
		if err != nil {
			return nil, dnsLink, &InvalidError{URI: ref.shown,
				Why: "the name leads to something other than a content path", Err: err}
		}
		if !ok { // a name that is read again and again must expire too
			f.names.put(name, found, f.now())
		}
		next.segments = append(next.segments, target.segments...)
		if len(next.segments) > maxSegments {
			return nil, dnsLink, &InvalidError{URI: ref.shown, Why: "its path is too deep"}
		}
		target = next
	}
	if target.source != SourceCID {
		return nil, dnsLink, &InvalidError{URI: ref.shown,
			Why: fmt.Sprintf("more than %d names lead to one another", maxHops)}
	}
	target.web = ref.web
	return target, dnsLink, nil
}

func isKey(name string) bool {
	_, err := ipns.NameFromString(name)
	return err == nil
}

// canonicalName returns the canonical spelling of a name.
func canonicalName(name string) string {
	if n, err := ipns.NameFromString(name); err == nil {
		return n.String()
	}
	return strings.TrimSuffix(strings.ToLower(name), ".")
}

// lookUp fetches a key's record, or looks up a domain in DNS.
func (f *Fetcher) lookUp(ctx context.Context, name, shown string) (nameRecord, error) {
	if isKey(name) {
		return f.fetchRecord(ctx, name, shown)
	}
	return f.dnsLink(ctx, name, shown)
}

// fetchRecord asks gateways, several at a time, for the name's record (https://specs.ipfs.tech/ipns/ipns-record/). It
// returns the record with the highest sequence, and fails if that is lower than one seen before. A gateway can
// withhold the newest record but cannot forge one.
func (f *Fetcher) fetchRecord(ctx context.Context, name, shown string) (nameRecord, error) {
	type answer struct {
		g     *gateway
		found nameRecord
		err   error
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.TryTimeout)
	defer cancel()
	verdicts := &verdicts{shown: shown}
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel() // runs before the Wait above
	todo := orderGateways(f.gateways)
	answers := make(chan answer, len(todo))
	running := 0
	start := func() {
		g := todo[0]
		todo = todo[1:]
		running++
		asked.Go(func() {
			found, err := g.fetchRecord(ctx, name, f.now())
			answers <- answer{g, found, err}
		})
	}
	for len(todo) > 0 && running < recordGateways {
		start()
	}
	var best *nameRecord
	// After one valid answer, the other gateways have four times the hedge delay; after two, once the hedge delay.
	var enough <-chan time.Time
	timer := time.NewTimer(f.cfg.TryTimeout)
	defer timer.Stop()
	for valid := 0; running > 0; {
		select {
		case a := <-answers:
			running--
			if a.err != nil {
				verdicts.add(a.g, a.err)
				if len(todo) > 0 {
					start()
				}
				continue
			}
			if best == nil || a.found.sequence > best.sequence {
				best = &a.found
			}
			switch valid++; valid {
			case 1:
				timer.Reset(4 * f.cfg.Hedge)
				enough = timer.C
			case 2:
				timer.Reset(f.cfg.Hedge)
			}
		case <-enough:
			running = 0
		}
	}
	switch {
	case best == nil:
		return nameRecord{}, verdicts.err()
	case !f.names.isNewest(name, best.sequence):
		return nameRecord{}, &UnavailableError{URI: shown,
			Err: errors.New("the gateways know only a record older than one that was seen before")}
	}
	return *best, nil
}

// fetchRecord fetches the record of a key's name and verifies it.
func (g *gateway) fetchRecord(ctx context.Context, name string, now time.Time) (nameRecord, error) {
	n, err := ipns.NameFromString(name)
	if err != nil {
		return nameRecord{}, err
	}
	if err := g.acquire(ctx); err != nil {
		return nameRecord{}, err
	}
	defer g.release()
	resp, err := g.sendRequest(ctx, "ipns", n.String(), "ipns-record", "", "application/vnd.ipfs.ipns-record")
	if err != nil {
		return nameRecord{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := readCapped(resp.Body, int64(ipns.MaxRecordSize))
	if err != nil {
		return nameRecord{}, fmt.Errorf("reading its record: %w", err)
	}
	var found nameRecord
	found.value, found.sequence, found.ttl, err = parseRecord(name, b, now)
	if errors.Is(err, ipns.ErrSignature) || errors.Is(err, ipns.ErrPublicKeyMismatch) {
		g.demote() // any other fault may be the record owner's
	}
	return found, err
}

// parseRecord verifies a record of at most 10 KiB against its name, its signature and the time, and decodes it. ttl
// is how long it may be cached from now on.
func parseRecord(name string, record []byte,
	now time.Time) (value string, sequence uint64, ttl time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil { // the decoder is third-party code and the bytes are untrusted
			err = fmt.Errorf("the record made the decoder panic: %v", p)
		}
	}()
	n, err := ipns.NameFromString(name)
	if err != nil {
		return "", 0, 0, fmt.Errorf("reading the name: %w", err)
	}
	rec, err := ipns.UnmarshalRecord(record)
	if err == nil {
		err = ipns.ValidateWithName(rec, n)
	}
	if err != nil {
		return "", 0, 0, fmt.Errorf("checking the record: %w", err)
	}
	path, err := rec.Value()
	if err != nil {
		return "", 0, 0, fmt.Errorf("reading the record's value: %w", err)
	}
	if sequence, err = rec.Sequence(); err != nil {
		return "", 0, 0, fmt.Errorf("reading the record's sequence: %w", err)
	}
	until, err := rec.Validity()
	if err != nil {
		return "", 0, 0, fmt.Errorf("reading the record's validity: %w", err)
	}
	left := until.Sub(now)
	if left <= 0 {
		return "", 0, 0, ipns.ErrExpiredRecord
	}
	if ttl, err = rec.TTL(); err != nil || ttl <= 0 {
		ttl = longestName
	}
	return path.String(), sequence, min(max(ttl, shortestName), left, longestName), nil
}

// dnsLink looks up the content of a domain in DNS (https://dnslink.dev).
func (f *Fetcher) dnsLink(ctx context.Context, name, shown string) (nameRecord, error) {
	if !isDomain(name) {
		return nameRecord{}, &NoDocumentError{URI: shown, Why: "its name is neither a key nor a domain"}
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.TryTimeout)
	defer cancel()
	texts, err := f.cfg.LookupTXT(ctx, "_dnslink."+name)
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return nameRecord{}, &NotFoundError{URI: shown, Asked: []string{"DNS"}}
	}
	if err != nil {
		return nameRecord{}, &UnavailableError{URI: shown,
			Err: fmt.Errorf("its DNSLink: %w", netguard.Explain("DNS", f.cfg.TryTimeout, err))}
	}
	var links []string
	for _, text := range texts {
		if link, ok := strings.CutPrefix(text, "dnslink="); ok && looksLikePath(link) && len(link) <= maxURI &&
			!slices.Contains(links, link) {
			links = append(links, link)
		}
	}
	switch len(links) {
	case 0:
		return nameRecord{}, &NotFoundError{URI: shown, Asked: []string{"DNS"}}
	case 1:
		return nameRecord{value: links[0], ttl: longestName}, nil
	}
	return nameRecord{}, &UnavailableError{URI: shown, Err: errors.New("the domain has more than one DNSLink")}
}

// isDomain reports whether s is a DNS name with at least two labels.
func isDomain(s string) bool {
	if len(s) > 245 || !strings.Contains(s, ".") { // 253 with "_dnslink."
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || strings.Trim(strings.ToLower(label),
			"abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// nameCache caches the content of names and the highest sequence seen for each. It evicts the least recently used
// names.
type nameCache struct {
	mu   sync.Mutex
	byID *lru.Cache[string, *nameEntry]
}

// nameEntry is a cached record and the highest sequence that was seen for the name.
type nameEntry struct {
	nameRecord
	expires time.Time
	highest uint64
}

const maxNames = 4096

func newNames() *nameCache {
	byID, _ := lru.New[string, *nameEntry](maxNames) // fails only for a size below 1
	return &nameCache{byID: byID}
}

func (n *nameCache) get(name string, now time.Time) (nameRecord, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, ok := n.byID.Get(name)
	if !ok || !now.Before(e.expires) {
		return nameRecord{}, false
	}
	return e.nameRecord, true
}

func (n *nameCache) put(name string, found nameRecord, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.findEntry(name)
	e.nameRecord, e.expires = found, now.Add(found.ttl)
}

// isNewest reports whether no higher sequence was seen before, and stores the sequence if so.
func (n *nameCache) isNewest(name string, sequence uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.findEntry(name)
	if sequence < e.highest {
		return false
	}
	e.highest = sequence
	return true
}

func (n *nameCache) findEntry(name string) *nameEntry {
	e, ok := n.byID.Get(name)
	if !ok {
		e = &nameEntry{}
		n.byID.Add(name, e)
	}
	return e
}
