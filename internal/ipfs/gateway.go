package ipfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ipfs/go-cid"
	"github.com/ipld/go-car/v2"

	blocks "github.com/ipfs/go-block-format"

	"github.com/agentherald/herald/internal/base/netguard"
)

// Limits of the exchange with one gateway.
const (
	maxBlock     = 2 << 20  // bytes of a block; bitswap's maximum
	maxCARHeader = 16 << 10 // bytes of a CAR's header; its roots are ignored

	// demotion is how long a gateway that sent wrong bytes is asked after the others.
	demotion = time.Minute
	// unwell is the number of consecutive failures after which a gateway is asked after the others.
	unwell = 3
	// gatewayInflight is the maximum number of concurrent requests to one gateway. It is the need of 32 deliveries
	// with parallelBlocks each, so that deliveries of unavailable content cannot hold all permits.
	gatewayInflight = 64
	// longestRetryAfter bounds the Retry-After that a gateway can state. longestOutage bounds that of a 503: an outage
	// may end before the stated time, and no content can be fetched while all gateways rest.
	longestRetryAfter = time.Hour
	longestOutage     = 30 * time.Second
)

const userAgent = "herald/1 (+https://github.com/agentherald/herald)"

// gateway is one trustless HTTP gateway (https://specs.ipfs.tech/http-gateways/trustless-gateway/). Its answers are
// untrusted, except for bytes that hash to the requested CID.
type gateway struct {
	base   *url.URL // without the /ipfs/ part; the path has no trailing slash
	client *http.Client
	try    time.Duration // time limit of one request
	now    func() time.Time

	permits chan struct{} // one element per running request

	mu      sync.Mutex
	resting time.Time // the gateway asked for no requests before this time
	demoted time.Time // until this time, the gateway is asked after the others
	streak  int       // failures since the last success
}

func newGateway(base *url.URL, client *http.Client, try time.Duration, now func() time.Time) *gateway {
	base.Path, base.RawPath = strings.TrimSuffix(strings.TrimRight(base.Path, "/"), "/ipfs"), ""
	return &gateway{base: base, client: client, try: try, now: now, permits: make(chan struct{}, gatewayInflight)}
}

// acquire waits for a permit to send a request. Each gateway has gatewayInflight permits. The caller returns the
// permit with release.
func (g *gateway) acquire(ctx context.Context) error {
	select {
	case g.permits <- struct{}{}:
	case <-ctx.Done():
		return errBusy
	}
	if wait := g.restTime(); wait > 0 { // the gateway asked for a rest during the wait
		g.release()
		return &statusError{retry: wait}
	}
	return nil
}

func (g *gateway) release() { <-g.permits }

// parseGateway parses the URL of a gateway. Package config has explained an invalid one to the operator.
func parseGateway(s string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSpace(s))
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("ipfs: a gateway is no plain URL; write it as https://host or http://127.0.0.1:8080")
	}
	return u, nil
}

// gatewayClient returns a client for hosts that the operator configured. It may reach loopback.
func gatewayClient(try time.Duration) *http.Client {
	// Go asks a second nameserver after 5 s. The connection is then too late for the request, but serves the next one.
	dialer := net.Dialer{Timeout: try + time.Second}
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil, // only the configured hosts are contacted
			DialContext:            dialer.DialContext,
			DisableCompression:     true,
			MaxResponseHeaderBytes: 32 << 10,
			TLSHandshakeTimeout:    min(3*time.Second, try),
			ResponseHeaderTimeout:  try,
			IdleConnTimeout:        time.Minute,
			MaxIdleConnsPerHost:    8,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (g *gateway) host() string { return g.base.Host }

// Failures of one gateway. They do not leave this package: a fetch combines them into a NotFoundError or an
// UnavailableError.
var (
	errAbsent = errors.New("it does not have the content")
	errLied   = errors.New("it sent bytes that do not match the CID")
	errSpent  = errors.New("it sent more bytes than one fetch may take")
	errLarge  = errors.New("which is larger than the maximum")
	errBusy   = fmt.Errorf("%d requests to it are under way already", gatewayInflight)
)

// statusError is an answer that is neither content nor "not found".
type statusError struct {
	status int           // 0: the gateway was not asked, because it asked for a pause before
	retry  time.Duration // the wait that it asked for
}

func (e *statusError) Error() string {
	switch {
	case e.status == 0:
		return fmt.Sprintf("it asked for a rest of another %s", e.retry.Round(time.Second))
	case e.retry > 0:
		return fmt.Sprintf("it answered %d and asks to wait %s", e.status, e.retry)
	}
	return fmt.Sprintf("it answered %d", e.status)
}

// restTime returns how long the gateway must not be asked.
func (g *gateway) restTime() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(0, g.resting.Sub(g.now()))
}

func (g *gateway) isDemoted() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now().Before(g.demoted)
}

// demote makes the gateway rank after the others for the time demotion.
func (g *gateway) demote() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.demoted = g.now().Add(demotion)
}

// recordResult updates the count of consecutive failures after a request. It ignores requests that were cancelled
// because another gateway was faster or the caller left. "Not found" counts as an answer.
func (g *gateway) recordResult(ctx context.Context, err error) {
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return
	}
	var status *statusError
	switch {
	case err == nil, errors.Is(err, errAbsent):
	case errors.Is(err, errSpent), errors.Is(err, errLarge),
		errors.As(err, &status) && status.status == http.StatusGatewayTimeout:
		return // the cause is the content, or may be
	default:
		g.recordOutrun()
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.streak = 0
}

// recordOutrun counts a failure. A gateway also fails if a gateway that was asked later answers first.
func (g *gateway) recordOutrun() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.streak++; g.streak >= unwell {
		g.demoted = g.now().Add(demotion)
	}
}

// sendRequest requests /<namespace>/<path> in the given format. The caller must close the body and must not drain it.
func (g *gateway) sendRequest(ctx context.Context, namespace, path, format, query,
	accept string) (*http.Response, error) {
	target := g.base.Scheme + "://" + g.base.Host + g.base.EscapedPath() + "/" + namespace + "/" + path + "?format=" +
		format + query
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", userAgent)
	resp, err := g.client.Do(req)
	if err != nil {
		return nil, netguard.Explain("it", g.try, err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return resp, nil
	case http.StatusNotFound, http.StatusGone:
		err = errAbsent
	default:
		retry := netguard.RetryAfter(resp.Header, g.now(), longestRetryAfter)
		if resp.StatusCode == http.StatusServiceUnavailable {
			retry = min(retry, longestOutage)
		}
		if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
			g.mu.Lock()
			if until := g.now().Add(retry); until.After(g.resting) {
				g.resting = until
			}
			g.mu.Unlock()
		}
		err = &statusError{status: resp.StatusCode, retry: retry}
	}
	_ = resp.Body.Close() // not drained, because an error page may be endless
	return nil, err
}

// fetchBlock fetches one raw block and verifies its hash.
func (g *gateway) fetchBlock(ctx context.Context, c cid.Cid, left *atomic.Int64) (_ blocks.Block, err error) {
	defer func() { g.recordResult(ctx, err) }()
	resp, err := g.sendRequest(ctx, "ipfs", c.String(), "raw", "", "application/vnd.ipld.raw")
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.ContentLength > maxBlock {
		return nil, fmt.Errorf("it announced a block of %d bytes, %w", resp.ContentLength, errLarge)
	}
	data, err := readCapped(meteredReader{resp.Body, left}, maxBlock)
	switch {
	case errors.Is(err, errOverCap):
		return nil, fmt.Errorf("it sent a block of more than %d bytes, %w", maxBlock, errLarge)
	case err != nil:
		return nil, err
	}
	sum, err := c.Prefix().Sum(data)
	if err != nil {
		return nil, fmt.Errorf("hashing a block: %w", err)
	}
	if !sum.Equals(c) {
		g.demote()
		return nil, findLie(resp.Header, data)
	}
	return blocks.NewBlockWithCid(data, c)
}

// findLie returns an error that describes the bytes that came instead of the block.
func findLie(h http.Header, data []byte) error {
	coding := strings.ToLower(strings.TrimSpace(h.Get("Content-Encoding")))
	switch {
	case len(data) == 0:
		return fmt.Errorf("%w: nothing at all", errLied)
	case coding != "" && coding != "identity":
		return fmt.Errorf("%w: they are encoded as %.20q, which was not asked for", errLied, coding)
	case strings.HasPrefix(h.Get("Content-Type"), "text/html") || data[0] == '<':
		return fmt.Errorf("%w: they are a web page", errLied)
	}
	return errLied
}

// fetchCAR requests the blocks that prove path and the first size bytes of the file there. It passes each verified
// block to keep. The end of the stream does not matter, because the walk detects missing blocks. It returns an error
// only if the root itself is missing.
func (g *gateway) fetchCAR(ctx context.Context, root cid.Cid, path string, size int64, left *atomic.Int64,
	keep func(blocks.Block)) (err error) {
	defer func() { g.recordResult(ctx, err) }()
	resp, err := g.sendRequest(ctx, "ipfs", root.String()+path, "car",
		"&dag-scope=entity&entity-bytes=0:"+strconv.FormatInt(size, 10),
		"application/vnd.ipld.car; version=1; order=dfs; dups=n")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	defer func() {
		if p := recover(); p != nil { // the decoder is third-party code and the bytes are untrusted
			err = fmt.Errorf("its CAR made the decoder panic: %v", p)
		}
	}()
	// A gateway that does not support dag-scope sends a whole tree. Half of its allowance is reserved for raw
	// requests of blocks that are then still missing.
	body := io.LimitReader(meteredReader{resp.Body, left}, size+maxOverhead)
	r, err := car.NewBlockReader(body,
		car.MaxAllowedHeaderSize(maxCARHeader), car.MaxAllowedSectionSize(maxBlock+128))
	if err != nil {
		return fmt.Errorf("reading its CAR: %w", err)
	}
	hasRoot := false
	for range maxVisits {
		blk, err := r.Next() // verifies the block's hash
		if err != nil {
			if hasRoot {
				return nil
			}
			if errors.Is(err, io.EOF) {
				return errAbsent // some gateways report "not found" with status 200 and an empty CAR
			}
			return fmt.Errorf("reading its CAR: %w", err)
		}
		// A CAR's section chooses its own hash function. Keep only blocks that a verified link could name.
		if c := blk.Cid(); isDecodable(c) {
			hasRoot = hasRoot || c.Equals(root)
			keep(blk)
		}
	}
	if !hasRoot {
		return errors.New("its CAR lacks the root")
	}
	return nil
}

// meteredReader subtracts the bytes that it reads from an allowance. It fails with errSpent when the allowance is
// spent.
type meteredReader struct {
	r    io.Reader
	left *atomic.Int64
}

func (m meteredReader) Read(p []byte) (int, error) {
	if m.left.Load() <= 0 {
		return 0, errSpent
	}
	n, err := m.r.Read(p)
	m.left.Add(-int64(n))
	return n, err
}
