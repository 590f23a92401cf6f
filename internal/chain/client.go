package chain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/secret"
)

// maxAnswer bounds one answer of the node. A receipt is far below; a range of logs is read in parts when it is above.
const maxAnswer = 16 << 20

var errTooLarge = fmt.Errorf("the answer is larger than %d bytes", maxAnswer)

// Config says which node to ask.
type Config struct {
	// ChainID is what the node must serve.
	ChainID uint64
	// URL is the node's address: http, https, ws or wss.
	URL secret.Secret
	// Timeout of one question, dialling included. Default 10 s.
	Timeout time.Duration
	// Confirmations is the number of blocks on top of an event's block that make it confirmed. 0: being mined is
	// enough.
	Confirmations uint64
	// Registries are those of which Check takes events. It refuses every event if there are none.
	Registries erc8004.Registries
	// LogRange is how many of the newest blocks Check searches for the event of a job that does not say where it is.
	LogRange uint64
	// Logger, default slog.Default().
	Logger *slog.Logger
}

// Client asks one node about one chain. It is safe for concurrent use.
type Client struct {
	chainID       uint64
	url           secret.Secret
	mask          *secret.Masker // of what in the URL may be a key
	timeout       time.Duration
	confirmations uint64
	registries    erc8004.Registries
	logRange      uint64
	log           *slog.Logger
	transport     *http.Transport

	dialing chan struct{} // holds one token: who has it may dial
	silence silence

	mu         sync.Mutex
	node       *rpc.Client // nil until the node's chain id was seen
	closed     bool
	identities map[common.Address]common.Address // what getIdentityRegistry answered
}

var errClosed = errors.New("the client is closed")

// New makes a client. It does not touch the network: the node may be away now and come later.
func New(cfg Config) (*Client, error) {
	if cfg.ChainID == 0 {
		return nil, errors.New("chain: the chain id is 0")
	}
	u, err := url.Parse(cfg.URL.Reveal())
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "ws" &&
		u.Scheme != "wss" {
		return nil, fmt.Errorf("RPC_URL_%d is no http, https, ws or wss address", cfg.ChainID)
	}
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("chain %d: the timeout %s is negative", cfg.ChainID, cfg.Timeout)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Client{
		chainID: cfg.ChainID, url: cfg.URL, mask: secret.NewMasker(listKeys(u)), timeout: cfg.Timeout,
		confirmations: cfg.Confirmations,
		registries:    cfg.Registries, logRange: cfg.LogRange, log: cfg.Logger,
		transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment, // the operator's own address, unlike what strangers name
			MaxIdleConnsPerHost:   16,
			IdleConnTimeout:       90 * time.Second,
			TLSHandshakeTimeout:   cfg.Timeout,
			ResponseHeaderTimeout: cfg.Timeout,
			ForceAttemptHTTP2:     true,
		},
		dialing:    make(chan struct{}, 1),
		silence:    silence{quiet: quietTime},
		identities: make(map[common.Address]common.Address),
	}, nil
}

// ChainID returns the id of the chain.
func (c *Client) ChainID() uint64 { return c.chainID }

// Ping asks the node for its chain id. The error is an *UnavailableError or a *WrongChainError.
func (c *Client) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	node, err := c.connect(ctx)
	if err == nil {
		err = c.checkChainID(ctx, node)
	}
	c.silence.noteOutcome(ctx, err)
	return err
}

// Close ends the connections. Later calls fail.
func (c *Client) Close() {
	c.mu.Lock()
	node := c.node
	c.node, c.closed = nil, true
	c.mu.Unlock()
	if node != nil {
		node.Close()
	}
	c.transport.CloseIdleConnections()
}

// connect returns the connection, making it if there is none; one caller at a time does, the others wait for it.
func (c *Client) connect(ctx context.Context) (*rpc.Client, error) {
	if node, err := c.currentNode(); node != nil || err != nil {
		return node, err
	}
	select {
	case c.dialing <- struct{}{}:
		defer func() { <-c.dialing }()
	case <-ctx.Done():
		return nil, c.newUnavailable("connecting", ctx.Err())
	}
	if node, err := c.currentNode(); node != nil || err != nil {
		return node, err
	}
	node, err := rpc.DialOptions(ctx, c.url.Reveal(), rpc.WithHTTPClient(&http.Client{
		Transport:     boundedTransport{c.transport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}), rpc.WithWebsocketMessageSizeLimit(maxAnswer))
	if err != nil {
		return nil, c.newUnavailable("connecting", err)
	}
	if err := c.checkChainID(ctx, node); err != nil {
		node.Close()
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		node.Close()
		return nil, c.newUnavailable("connecting", errClosed)
	}
	c.node = node
	return node, nil
}

func (c *Client) currentNode() (*rpc.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, c.newUnavailable("connecting", errClosed)
	}
	return c.node, nil
}

func (c *Client) checkChainID(ctx context.Context, node *rpc.Client) error {
	var id hexutil.Big
	if err := node.CallContext(ctx, &id, "eth_chainId"); err != nil {
		return c.newUnavailable("asking for the chain id", err)
	}
	if got := id.ToInt(); !got.IsUint64() || got.Uint64() != c.chainID {
		return &WrongChainError{Want: c.chainID, Got: got.Uint64()}
	}
	return nil
}

func (c *Client) newUnavailable(op string, err error) error {
	return &UnavailableError{ChainID: c.chainID, Op: op, Err: maskError(err, c.timeout, c.mask)}
}

// sendBatch asks several things in one request. Errors of single elements stay in them.
func (c *Client) sendBatch(ctx context.Context, op string, elems []rpc.BatchElem) error {
	failure, err := c.askNode(ctx, op, func(ctx context.Context, node *rpc.Client) error {
		return node.BatchCallContext(ctx, elems)
	})
	if err == nil && failure != nil {
		err = c.newUnavailable(op, failure)
	}
	return err
}

// sendCall asks one thing.
func (c *Client) sendCall(ctx context.Context, op string, result any, method string, args ...any) error {
	failure, err := c.askNode(ctx, op, func(ctx context.Context, node *rpc.Client) error {
		return node.CallContext(ctx, result, method, args...)
	})
	if err == nil && failure != nil {
		err = c.newUnavailable(op, failure)
	}
	return err
}

// callArgs are the parameters of eth_call. `data` is the name that every node knows.
func callArgs(to common.Address, data []byte, block string) []any {
	return []any{map[string]any{"to": to, "data": hexutil.Bytes(data)}, block}
}

// revert is what a contract answered instead of a result.
type revert struct{ data []byte }

func (r *revert) Error() string {
	return fmt.Sprintf("the contract reverted with %d bytes", len(r.data))
}

// callView calls a contract's view function. Beside *UnavailableError, and *NoContractError in one, it returns *revert.
func (c *Client) callView(ctx context.Context, op string, to common.Address, data []byte) ([]byte, error) {
	var ret hexutil.Bytes
	failure, err := c.askNode(ctx, op, func(ctx context.Context, node *rpc.Client) error {
		return node.CallContext(ctx, &ret, "eth_call", callArgs(to, data, latest)...)
	})
	if err != nil {
		return nil, err
	}
	return c.readAnswer(op, to, ret, failure)
}

// readAnswer interprets the outcome of an eth_call.
func (c *Client) readAnswer(op string, to common.Address, ret hexutil.Bytes, err error) ([]byte, error) {
	if err != nil {
		if data, ok := findRevert(err); ok {
			return nil, &revert{data}
		}
		return nil, c.newUnavailable(op, err)
	}
	if len(ret) == 0 {
		return nil, c.newUnavailable(op, &NoContractError{ChainID: c.chainID, Address: to})
	}
	return ret, nil
}

// TokenURI reads an agent's tokenURI, unchanged. Errors: *NoSuchAgentError, *UnavailableError, *WrongChainError.
func (c *Client) TokenURI(ctx context.Context, identity common.Address, agentID *big.Int) (string, error) {
	gone := &NoSuchAgentError{ChainID: c.chainID, Registry: identity, AgentID: agentID}
	call, err := erc8004.PackTokenURI(agentID)
	if err != nil {
		return "", gone // no registry has an id that is no uint256
	}
	const op = "reading tokenURI"
	ret, err := c.callView(ctx, op, identity, call)
	var reverted *revert
	switch {
	case errors.As(err, &reverted) && erc8004.IsNonexistentToken(reverted.data):
		return "", gone
	case errors.As(err, &reverted):
		return "", c.checkOwner(ctx, op, gone, reverted)
	case err != nil:
		return "", err
	}
	uri, err := erc8004.UnpackTokenURI(ret)
	if err != nil {
		return "", c.newUnavailable(op, err)
	}
	return uri, nil
}

// checkOwner finds out what a revert without the known error means: if ownerOf reverts as well, there is no such agent.
func (c *Client) checkOwner(ctx context.Context, op string, gone *NoSuchAgentError, reverted *revert) error {
	call, err := erc8004.PackOwnerOf(gone.AgentID)
	if err != nil {
		return gone
	}
	_, err = c.callView(ctx, "reading ownerOf", gone.Registry, call)
	var also *revert
	switch {
	case errors.As(err, &also):
		return gone
	case err != nil:
		return err
	}
	return c.newUnavailable(op, reverted)
}

// boundedTransport ends an answer that is too large.
type boundedTransport struct{ next http.RoundTripper }

func (t boundedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	return resp, nil
}
