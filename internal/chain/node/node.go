package node

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
)

// link holds the data that a client and its nodes share: the chain, and how to mask errors.
type link struct {
	chainID uint64
	timeout time.Duration  // of one question to one node
	mask    *secret.Masker // masks the parts of all nodes' URLs that may be keys

	decoding *decode.Budget // of the whole process; nil means no bound
}

// NewUnavailable returns an *UnavailableError with a masked error.
func (l *link) NewUnavailable(op string, err error) error {
	return &UnavailableError{ChainID: l.chainID, Op: op, Err: maskError(err, l.timeout, l.mask)}
}

// compareChainID returns a *WrongChainError if a node's chain id is not the expected one.
func (l *link) compareChainID(id *hexutil.Big) error {
	if got := id.ToInt(); !got.IsUint64() || got.Uint64() != l.chainID {
		return &WrongChainError{Want: l.chainID, Got: got.Uint64()}
	}
	return nil
}

// node is one address of RPC_URL_<chain>: its connection and its health.
type node struct {
	*link
	number  int // its position in RPC_URL_<chain>, from 1
	URL     secret.Secret
	stub    http.RoundTripper // Config.Transport
	silence silence
	health  health
	rest    rest
	batch   batchLimit
	reading *decode.Budget // for large answers that are being read (maxReading)

	dialing chan struct{} // holds one token; its holder may dial, or ask for the chain id

	mu        sync.Mutex
	transport *http.Transport // of conn; dropConns replaces it
	conn      *rpc.Client
	verified  bool // the node's chain id was compared since its last failure
	closed    bool
}

var errClosed = errors.New("the client is closed")

func newNode(l *link, number int, address secret.Secret, stub http.RoundTripper) *node {
	return &node{
		link: l, number: number, URL: address, stub: stub,
		transport: &http.Transport{
			// The operator chose this address, so it may use the proxy, unlike addresses from jobs and agents.
			Proxy:                 http.ProxyFromEnvironment,
			MaxIdleConnsPerHost:   16,
			IdleConnTimeout:       90 * time.Second,
			TLSHandshakeTimeout:   l.timeout,
			ResponseHeaderTimeout: l.timeout,
			ForceAttemptHTTP2:     true,
			DisableCompression:    true, // a small body could decompress to a very large one, see boundAnswer
		},
		silence: silence{quiet: quietTime},
		reading: decode.NewBudget(maxReading),
		dialing: make(chan struct{}, 1),
	}
}

// isNodeURL reports whether u can be the address of a node.
func isNodeURL(u *url.URL) bool {
	return u.Host != "" && (u.Scheme == "http" || u.Scheme == "https" || u.Scheme == "ws" || u.Scheme == "wss")
}

// close closes the connections. Later requests fail.
func (n *node) close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.dropConns()
}

// dropConns closes the connections. The next question opens a new one, with a new transport: the old transport does not
// close an HTTP/2 connection whose last request is still being cancelled, and would use it again.
func (n *node) dropConns() {
	n.mu.Lock()
	conn, transport := n.conn, n.transport
	n.conn, n.verified, n.transport = nil, false, transport.Clone()
	n.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
	transport.CloseIdleConnections()
}

// connect returns the connection, and dials if it does not exist. After a failure it asks for the chain id again,
// because another node may answer at the same address then. One caller at a time does either; the others wait for it.
func (n *node) connect(ctx context.Context) (*rpc.Client, error) {
	if conn, verified, err := n.currentConn(); verified || err != nil {
		return conn, err
	}
	select {
	case n.dialing <- struct{}{}:
		defer func() { <-n.dialing }()
	case <-ctx.Done():
		return nil, n.NewUnavailable("connecting", ctx.Err())
	}
	conn, verified, err := n.currentConn()
	if verified || err != nil {
		return conn, err
	}
	if conn == nil {
		if conn, err = n.dial(ctx); err != nil {
			return nil, n.NewUnavailable("connecting", err)
		}
		// The connection is kept even if the chain id is wrong: the next caller asks for it again.
		if err := n.storeConn(conn); err != nil {
			return nil, err
		}
	}
	if err := n.checkChainID(ctx, conn); err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.verified = n.conn == conn
	n.mu.Unlock()
	return conn, nil
}

// dial connects to the node. The connection follows no redirects and bounds websocket messages.
func (n *node) dial(ctx context.Context) (*rpc.Client, error) {
	n.mu.Lock()
	transport := cmp.Or(n.stub, http.RoundTripper(n.transport))
	n.mu.Unlock()
	return rpc.DialOptions(ctx, n.URL.Reveal(), rpc.WithHTTPClient(&http.Client{
		Transport:     nodeTransport{n, transport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}), rpc.WithWebsocketMessageSizeLimit(maxWebsocketAnswer))
}

// storeConn stores the connection. It closes it and fails if the node was closed.
func (n *node) storeConn(conn *rpc.Client) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		conn.Close()
		return n.NewUnavailable("connecting", errClosed)
	}
	n.conn = conn
	return nil
}

// currentConn returns the stored connection, which may be nil, and whether its chain id was compared. It fails if the
// node was closed.
func (n *node) currentConn() (conn *rpc.Client, verified bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, false, n.NewUnavailable("connecting", errClosed)
	}
	return n.conn, n.verified, nil
}

// requireChainID makes connect ask for the chain id again before the next question.
func (n *node) requireChainID() {
	n.mu.Lock()
	n.verified = false
	n.mu.Unlock()
}

// checkChainID asks the node for its chain id and compares it.
func (n *node) checkChainID(ctx context.Context, conn *rpc.Client) error {
	var id hexutil.Big
	if err := conn.CallContext(ctx, &id, "eth_chainId"); err != nil {
		return n.NewUnavailable("asking for the chain id", err)
	}
	return n.compareChainID(&id)
}

// ping asks the node for its chain id, unless the node rests.
func (n *node) ping(ctx context.Context) error {
	if remaining := n.rest.remaining(time.Now()); remaining > maxPause {
		return n.newResting("asking for the chain id", remaining)
	}
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	conn, err := n.connect(ctx)
	if err == nil {
		err = n.checkChainID(ctx, conn)
	}
	n.silence.noteOutcome(ctx, err)
	return err
}

// nodeTransport bounds the size of answers, and reads how long a rate-limited client should wait.
type nodeTransport struct {
	node      *node
	transport http.RoundTripper
}

func (t nodeTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	releaseHeld(req.Context())
	resp, err := t.transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	now := time.Now()
	wait := netguard.RetryAfter(resp.Header, now, maxStatedRest)
	if resp.StatusCode >= http.StatusInternalServerError {
		wait = min(wait, maxRest) // an outage may end before the stated time
	}
	if resp.StatusCode >= http.StatusBadRequest {
		t.node.rest.noteStated(now, wait)
	}
	body, err := t.node.boundAnswer(req, resp)
	if err != nil {
		return nil, err
	}
	if refusal := readBatchRefusal(req, resp.StatusCode, body); refusal != nil {
		t.node.rest.noteStated(now, wait)
		return nil, refusal
	}
	return resp, nil
}
