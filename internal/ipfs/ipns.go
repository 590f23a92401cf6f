package ipfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ipfs/boxo/ipns"

	"github.com/agentherald/herald/internal/base/netguard"
)

const (
	// maxHops is how many names may lead to one another.
	maxHops = 8
	// maxRecords is how many gateways' records of a name are compared, because any gateway can replay an old one.
	maxRecords = 4
	// longestName and shortestName bound how long the content of a name is cached. Agents and clients publish below a
	// name again before an event refers to it, so a longer TTL of the record is not followed. longestName is used for
	// domains, whose TTL the system's resolver does not return, and for records without a TTL.
	longestName  = time.Minute
	shortestName = 10 * time.Second
	// maxNames bounds the names whose last record is stored, also after it expired.
	maxNames = 4096
)

// nameRecord is the content that a name leads to.
type nameRecord struct {
	value    string    // /ipfs/CID[/path] or /ipns/NAME[/path]
	sequence uint64    // of an IPNS record
	until    time.Time // end of the validity of an IPNS record
	expires  time.Time // end of the time for which it is cached
}

// isOlder reports whether the owner of the name replaced r by other. Of two records with the same sequence, that with
// the later end of its validity is newer (https://specs.ipfs.tech/ipns/ipns-record/).
func (r nameRecord) isOlder(other nameRecord) bool {
	return cmp.Or(cmp.Compare(r.sequence, other.sequence), r.until.Compare(other.until)) < 0
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
		found, err := f.lookUp(ctx, name, ref.shown, ref.anew)
		if err != nil {
			return nil, dnsLink, err
		}
		dnsLink = dnsLink || !isKey(name)
		next, err := parseImmutable("", found.value, ref.shown)
		if err != nil {
			return nil, dnsLink, &InvalidError{URI: ref.shown,
				Why: "the name leads to something other than a content path", Err: err}
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

// lookUp returns the cached content of a name. If none is cached, or with anew, it fetches a key's record or looks up a
// domain in DNS.
func (f *Fetcher) lookUp(ctx context.Context, name, shown string, anew bool) (found nameRecord, err error) {
	last, _ := f.names.Get(name)
	if !anew && f.cfg.Now().Before(last.expires) {
		return last, nil
	}
	if isKey(name) {
		found, err = f.fetchRecord(ctx, name, shown)
	} else {
		found, err = f.dnsLink(ctx, name, shown)
	}
	if err != nil {
		return nameRecord{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if last, _ = f.names.Get(name); found.isOlder(last) {
		if found.value != last.value { // owners renew a record with the same value every few hours
			return nameRecord{}, &UnavailableError{URI: shown,
				Err: errors.New("the gateways know only a record older than one that was seen before")}
		}
		found.sequence, found.until = last.sequence, last.until
	}
	f.names.Add(name, found)
	return found, nil
}

// errOneRecord is the result of a gateway that sent a valid record: others may have a newer one.
var errOneRecord = errors.New("it sent one record of several")

// fetchRecord asks all gateways at once for the name's record (https://specs.ipfs.tech/ipns/ipns-record/). It returns
// the newest of their records (isOlder). A gateway can withhold the newest record but cannot forge one.
func (f *Fetcher) fetchRecord(ctx context.Context, name, shown string) (best nameRecord, err error) {
	s := f.newSession(ctx, shown, int64(ipns.MaxRecordSize))
	defer s.end()
	s.hedge = 0
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		mu    sync.Mutex
		valid int
		// After one valid answer, the other gateways have four times the hedge delay; after two, once the hedge delay.
		enough *time.Timer
	)
	err = s.askGateways(ctx, func(ctx context.Context, g *gateway) error {
		found, err := g.fetchRecord(ctx, name, f.cfg.Now())
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if valid == 0 || best.isOlder(found) {
			best = found
		}
		switch valid++; valid {
		case 1:
			enough = time.AfterFunc(4*f.cfg.Hedge, cancel)
		case 2:
			enough.Reset(f.cfg.Hedge)
		case maxRecords:
			cancel()
		}
		return errOneRecord
	})
	if valid == 0 {
		return nameRecord{}, s.explainError(err)
	}
	return best, nil
}

// fetchRecord fetches the record of a key's name and verifies it.
func (g *gateway) fetchRecord(ctx context.Context, name string, now time.Time) (nameRecord, error) {
	n, err := ipns.NameFromString(name)
	if err != nil {
		return nameRecord{}, err
	}
	resp, err := g.sendRequest(ctx, "ipns", n.String(), "ipns-record", "", "application/vnd.ipfs.ipns-record")
	if err != nil {
		return nameRecord{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := readCapped(resp.Body, int64(ipns.MaxRecordSize))
	if err != nil {
		return nameRecord{}, fmt.Errorf("reading its record: %w", err)
	}
	found, err := parseRecord(name, b, now)
	if errors.Is(err, ipns.ErrSignature) || errors.Is(err, ipns.ErrPublicKeyMismatch) {
		g.demote() // any other fault may be the record owner's
	}
	return found, err
}

// parseRecord verifies a record of at most 10 KiB against its name, its signature and the time, and decodes it.
func parseRecord(name string, record []byte, now time.Time) (found nameRecord, err error) {
	defer func() {
		if p := recover(); p != nil { // the decoder is third-party code and the bytes are untrusted
			err = fmt.Errorf("the record made the decoder panic: %v", p)
		}
	}()
	n, err := ipns.NameFromString(name)
	if err != nil {
		return nameRecord{}, fmt.Errorf("reading the name: %w", err)
	}
	rec, err := ipns.UnmarshalRecord(record)
	if err == nil {
		err = ipns.ValidateWithName(rec, n)
	}
	if err != nil {
		return nameRecord{}, fmt.Errorf("checking the record: %w", err)
	}
	path, err := rec.Value()
	if err != nil {
		return nameRecord{}, fmt.Errorf("reading the record's value: %w", err)
	}
	sequence, err := rec.Sequence()
	if err != nil {
		return nameRecord{}, fmt.Errorf("reading the record's sequence: %w", err)
	}
	until, err := rec.Validity()
	if err != nil {
		return nameRecord{}, fmt.Errorf("reading the record's validity: %w", err)
	}
	left := until.Sub(now)
	if left <= 0 {
		return nameRecord{}, ipns.ErrExpiredRecord
	}
	ttl, err := rec.TTL()
	if err != nil || ttl <= 0 {
		ttl = longestName
	}
	return nameRecord{value: path.String(), sequence: sequence, until: until,
		expires: now.Add(min(max(ttl, shortestName), left, longestName))}, nil
}

// dnsLink looks up the content of a domain in DNS (https://dnslink.dev).
func (f *Fetcher) dnsLink(ctx context.Context, name, shown string) (nameRecord, error) {
	if !isDomain(name) {
		return nameRecord{}, &NoDocumentError{URI: shown, Why: "its name is neither a key nor a domain"}
	}
	timeout := f.cfg.TryTimeout + time.Second // Go asks a second nameserver after 5 s
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	texts, err := f.cfg.LookupTXT(ctx, "_dnslink."+name)
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return nameRecord{}, &NotFoundError{URI: shown, Asked: []string{"DNS"}}
	}
	if err != nil {
		return nameRecord{}, &UnavailableError{URI: shown,
			Err: fmt.Errorf("its DNSLink: %w", netguard.Explain("DNS", timeout, err))}
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
		return nameRecord{value: links[0], expires: f.cfg.Now().Add(longestName)}, nil
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
