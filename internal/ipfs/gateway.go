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
	"time"

	"github.com/ipfs/go-cid"
	"github.com/ipld/go-car/v2"

	blocks "github.com/ipfs/go-block-format"

	"github.com/agentherald/herald/internal/netguard"
)

// Limits of the exchange with one gateway.
const (
	maxBlock     = 2 << 20  // bytes of a block; bitswap's ceiling
	maxCARHeader = 16 << 10 // bytes of a CAR's header; its roots are not read

	// demotion is how long a gateway that sent wrong bytes is asked last.
	demotion = time.Minute
	// unwell is how many failures in a row make a gateway be asked last.
	unwell = 3
	// gatewayInflight is how many requests one gateway gets at a time: what 32 deliveries with parallelBlocks each
	// need, so that those whose content nobody has cannot hold all of them.
	gatewayInflight = 64
	// longestRetryAfter is the most that a gateway's Retry-After is believed.
	longestRetryAfter = time.Hour
)

const userAgent = "herald/1 (+https://github.com/agentherald/herald)"

// gateway is one trustless HTTP gateway
// (https://specs.ipfs.tech/http-gateways/trustless-gateway/). Nothing that it
// says is believed but bytes that hash to the CID asked for.
type gateway struct {
	base   *url.URL // without the /ipfs/ part, path without trailing slash
	client *http.Client
	try    time.Duration // that one question may take
	now    func() time.Time

	permits chan struct{} // one for each request under way

	mu      sync.Mutex
	resting time.Time // asked not to be asked before
	demoted time.Time // asked after the others until
	streak  int       // failures since it last brought something
}

func newGateway(base *url.URL, client *http.Client, try time.Duration, now func() time.Time) *gateway {
	return &gateway{base: base, client: client, try: try, now: now, permits: make(chan struct{}, gatewayInflight)}
}

// acquire waits until the gateway may be asked: it gets only so many requests at a time. release lets the next one go.
func (g *gateway) acquire(ctx context.Context) error {
	select {
	case g.permits <- struct{}{}:
	case <-ctx.Done():
		return errBusy
	}
	if wait := g.restTime(); wait > 0 { // asked for while we waited
		g.release()
		return &restingError{wait: wait}
	}
	return nil
}

func (g *gateway) release() { <-g.permits }

// parseGateway reads one configured gateway URL.
func parseGateway(s string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSpace(s))
	switch {
	case err != nil:
		return nil, errors.New("an IPFS gateway is no URL; write it as https://host or http://127.0.0.1:8080")
	case u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return nil, fmt.Errorf("IPFS gateway %q is no http or https URL; write it as https://host or http://127.0.0.1:8080", shownURL(u))
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("IPFS gateway %q carries user information, a query or a fragment; only scheme, host and path are taken", shownURL(u))
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/ipfs")
	u.RawPath = ""
	return u, nil
}

// gatewayClient is for operator-configured hosts only: it may reach loopback.
func gatewayClient(try time.Duration) *http.Client {
	dialer := net.Dialer{Timeout: min(3*time.Second, try)}
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil, // only what is configured is talked to
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

// Failures of one gateway. They stay inside the package: a fetch sums them up
// as NotFoundError or UnavailableError.
var (
	errAbsent = errors.New("it does not have the content")
	errLied   = errors.New("it sent bytes that do not match the CID")
	errSpent  = errors.New("it sent more bytes than one fetch may take")
	errLarge  = errors.New("which is larger than any that is taken")
	errBusy   = fmt.Errorf("%d requests to it are under way already", gatewayInflight)
)

// statusError is an answer that is neither content nor "not here".
type statusError struct {
	status int
	retry  time.Duration
}

func (e *statusError) Error() string {
	if e.retry > 0 {
		return fmt.Sprintf("it answered %d and asks to wait %s", e.status, e.retry)
	}
	return fmt.Sprintf("it answered %d", e.status)
}

// restingError says that a gateway was not asked, because it asked for a rest.
type restingError struct{ wait time.Duration }

func (e *restingError) Error() string {
	return fmt.Sprintf("it asked for a rest of another %s", e.wait.Round(time.Second))
}

// restTime returns how long the gateway still wants to be left alone.
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

func (g *gateway) demote() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.demoted = g.now().Add(demotion)
}

// recordResult counts how an answer to one of our questions ended. What a winner or a leaving caller cut short says
// nothing, and "not here" is an answer.
func (g *gateway) recordResult(ctx context.Context, err error) {
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return
	}
	var status *statusError
	switch {
	case err == nil, errors.Is(err, errAbsent):
	case errors.Is(err, errSpent), errors.Is(err, errLarge), errors.As(err, &status) && status.status == http.StatusGatewayTimeout:
		return // the content's fault, or may be
	default:
		g.recordOutrun()
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.streak = 0
}

// recordOutrun counts a failure: also to be asked first and to let one that was asked later win.
func (g *gateway) recordOutrun() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.streak++; g.streak >= unwell {
		g.demoted = g.now().Add(demotion)
	}
}

// sendRequest asks for /<namespace>/<path> in a format. The caller closes the body and
// never drains it.
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
		if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
			g.mu.Lock()
			if until := g.now().Add(retry); until.After(g.resting) {
				g.resting = until
			}
			g.mu.Unlock()
		}
		err = &statusError{status: resp.StatusCode, retry: retry}
	}
	_ = resp.Body.Close() // unread on purpose: an error page may be endless
	return nil, err
}

// fetchBlock fetches one raw block and checks it.
func (g *gateway) fetchBlock(ctx context.Context, c cid.Cid, b *allowance) (blocks.Block, error) {
	resp, err := g.sendRequest(ctx, "ipfs", c.String(), "raw", "", "application/vnd.ipld.raw")
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.ContentLength > maxBlock {
		return nil, fmt.Errorf("it announced a block of %d bytes, %w", resp.ContentLength, errLarge)
	}
	data, err := readCapped(b.meterReader(resp.Body), maxBlock)
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

// findLie says what came instead of the block.
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

// fetchCAR asks for the blocks that prove path and the first size bytes of the file
// there, and hands every block that verifies to keep. How the stream ends does
// not matter, the walk tells what is missing; only when root itself did not
// come is that an error.
func (g *gateway) fetchCAR(ctx context.Context, root cid.Cid, path string, size int64, b *allowance,
	keep func(blocks.Block)) (err error) {
	resp, err := g.sendRequest(ctx, "ipfs", root.String()+path, "car",
		"&dag-scope=entity&entity-bytes=0:"+strconv.FormatInt(size, 10),
		"application/vnd.ipld.car; version=1; order=dfs; dups=n")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	defer func() {
		if p := recover(); p != nil { // the decoder is not ours, the bytes a stranger's
			err = fmt.Errorf("its CAR made the decoder panic: %v", p)
		}
	}()
	// A gateway that does not know dag-scope sends a whole tree. Half of its
	// allowance is kept for the raw blocks that are then missing.
	body := io.LimitReader(b.meterReader(resp.Body), size+2<<20)
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
				return errAbsent // 200 and an empty CAR is how some say "not here"
			}
			return fmt.Errorf("reading its CAR: %w", err)
		}
		// A CAR's section names its own hash function. Only what a verified
		// link could name is worth keeping.
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

// allowance is what one gateway may still send during one fetch, so that a
// hostile one wastes its own share and not an honest one's.
type allowance struct {
	mu   sync.Mutex
	left int64
}

func (a *allowance) isSpent() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.left <= 0
}

func (a *allowance) meterReader(r io.Reader) io.Reader { return &meteredReader{r: r, a: a} }

type meteredReader struct {
	r io.Reader
	a *allowance
}

func (m *meteredReader) Read(p []byte) (int, error) {
	if m.a.isSpent() {
		return 0, errSpent
	}
	n, err := m.r.Read(p)
	m.a.mu.Lock()
	m.a.left -= int64(n)
	m.a.mu.Unlock()
	return n, err
}
