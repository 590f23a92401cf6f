package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/netguard"
)

// Bounds of one answer of a node. A receipt is far below them. If a range of logs exceeds them, it is read in parts.
const (
	maxAnswer = 16 << 20
	// maxAnswerTokens bounds the JSON tokens of an answer. Decoding can turn each token into some hundred bytes. A
	// log has about 30 tokens.
	maxAnswerTokens = 1_000_000
	// bytesPerToken is the minimum number of bytes that one token takes from the decoding budget. Honest answers have
	// 15 to 70 bytes per token.
	bytesPerToken = 16
	// maxWebsocketAnswer bounds one websocket message. go-ethereum decodes messages without counting tokens, and a
	// batch of `{}` grows to forty times its size. Each node decodes one message at a time.
	maxWebsocketAnswer = 4 << 20
	// maxRefusal bounds the body of a response whose HTTP status is a failure.
	maxRefusal = 64 << 10
	// smallAnswer is the size up to which an answer is read at once. Usual receipts and blocks are that small.
	smallAnswer = 256 << 10
	// maxReading bounds the bytes of the larger answers of one node that are in memory at a time.
	maxReading = 2 * maxAnswer
)

var ErrTooLarge = fmt.Errorf("the answer is larger than %d bytes (%d over a websocket) or %d JSON tokens", maxAnswer,
	maxWebsocketAnswer, maxAnswerTokens)

var (
	errCompressed   = errors.New("the node compressed its answer, although it was asked not to")
	errManyElements = errors.New("the node's batch answer has more elements than the request")
	// errReading means that other large answers of this node were being read. Another node may answer.
	errReading error = &netguard.FailureError{Text: "other large answers of the node are being read",
		Cause: decode.ErrBusy}
)

// heldKey is the context key of a question's *heldBudget.
type heldKey struct{}

// heldBudget holds the parts of budgets that the last answer to a question acquired.
type heldBudget struct{ releases []func() }

// releaseParts releases the parts.
func (h *heldBudget) releaseParts() {
	for _, release := range h.releases {
		release()
	}
	h.releases = nil
}

// holdBudget returns a context in which an answer keeps its parts of budgets until release is called, or until the next
// request starts. Only one request at a time may use the context.
func holdBudget(ctx context.Context) (_ context.Context, release func()) {
	held := &heldBudget{}
	return context.WithValue(ctx, heldKey{}, held), held.releaseParts
}

// releaseHeld releases the parts of budgets that the previous answer holds. nodeTransport calls it before each request:
// a question that held budget while it waits for a slow node could block decoding in the whole process.
func releaseHeld(ctx context.Context) {
	if held, ok := ctx.Value(heldKey{}).(*heldBudget); ok {
		held.releaseParts()
	}
}

// boundAnswer reads the whole body of an answer and returns it. Before go-ethereum decodes the body, boundAnswer
// rejects it if it is too large, compressed, or a batch with more elements than the request has calls. Decoding can
// take forty times the body's bytes, so boundAnswer also waits for a part of the process' decoding budget. It replaces
// the response's body with the bytes that it read.
func (n *node) boundAnswer(req *http.Request, resp *http.Response) ([]byte, error) {
	source := http.MaxBytesReader(nil, resp.Body, maxAnswer)
	failed := resp.StatusCode < 200 || resp.StatusCode > 299
	if failed {
		source = io.NopCloser(io.LimitReader(resp.Body, maxRefusal)) // the node's message is at the beginning
	}
	if encoding := resp.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		if !failed {
			return nil, errCompressed
		}
		source = http.NoBody // the status is sufficient
	}
	held, ok := req.Context().Value(heldKey{}).(*heldBudget)
	if !ok {
		held = &heldBudget{}
		defer held.releaseParts()
	}
	body, err := n.readBody(req.Context(), source, resp.ContentLength, held)
	if err != nil {
		return nil, err
	}
	counter := decode.Counter{Limit: maxAnswerTokens}
	if !counter.Add(body) {
		return nil, ErrTooLarge
	}
	if isArray(body) {
		asked, err := countCalls(req)
		if err != nil {
			return nil, err
		}
		if counter.Elements > asked {
			return nil, errManyElements
		}
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if !ok {
		return body, nil
	}
	release, err := n.decoding.Acquire(req.Context(), max(len(body), bytesPerToken*counter.Tokens()))
	if err != nil {
		return nil, err
	}
	held.releases = append(held.releases, release)
	return body, nil
}

// readBody reads the body of an answer, whose announced length is -1 if it is unknown. Above smallAnswer bytes, it
// waits for a part of n.reading, and adds it to held: a node that sends large bodies to all deliveries of its chain
// must not use up the memory of the process. The budget belongs to one node, because a node may take long to send a
// body.
func (n *node) readBody(ctx context.Context, source io.Reader, announced int64, held *heldBudget) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(source, smallAnswer))
	if err != nil || len(body) < smallAnswer {
		return body, err
	}
	size := maxAnswer
	if announced > 0 && announced < maxAnswer {
		size = int(announced)
	}
	release, err := n.reading.Acquire(ctx, size)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errReading, err)
	}
	held.releases = append(held.releases, release)
	return io.ReadAll(io.MultiReader(bytes.NewReader(body), source))
}

// isArray reports whether text, which is JSON, is an array.
func isArray(text []byte) bool { return bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("[")) }

// countCalls returns the number of calls in a request: the number of elements of a batch, otherwise one.
func countCalls(req *http.Request) (int, error) {
	text, err := readRequest(req)
	if err != nil || !isArray(text) {
		return 1, err
	}
	counter := decode.Counter{Limit: len(text)}
	counter.Add(text)
	return counter.Elements, nil
}

// readRequest returns the body of a request.
func readRequest(req *http.Request) ([]byte, error) {
	sent, err := req.GetBody()
	if err != nil {
		return nil, err
	}
	defer func() { _ = sent.Close() }()
	return io.ReadAll(sent)
}
