package chain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/agentherald/herald/internal/decode"
)

// Bounds of one answer of a node. A receipt is far below; a range of logs is read in parts when it is above.
const (
	maxAnswer = 16 << 20
	// maxAnswerTokens is of JSON tokens: each may become some hundred bytes when it is decoded. A log has about 30.
	maxAnswerTokens = 1_000_000
	// bytesPerToken is what a token weighs in the decoding budget at least. Honest answers have 15 to 70 bytes a token.
	bytesPerToken = 16
	// maxWebsocketAnswer is of one message, which go-ethereum decodes without a count: a batch of `{}` becomes forty times
	// its size. One message is decoded at a time for each node.
	maxWebsocketAnswer = 4 << 20
	// maxRefusal is of the body of an HTTP status of failure.
	maxRefusal = 64 << 10
)

var errTooLarge = fmt.Errorf("the answer is larger than %d bytes (%d over a websocket) or %d JSON tokens", maxAnswer,
	maxWebsocketAnswer, maxAnswerTokens)

var (
	errCompressed   = errors.New("the node compressed its answer, although it was asked not to")
	errManyElements = errors.New("the node's batch answer has more elements than the request")
)

// heldKey is the context key of a question's *heldBudget.
type heldKey struct{}

// heldBudget is the part of the decoding budget that the last answer to a question holds.
type heldBudget struct{ release func() }

// holdBudget returns a context in which an answer keeps its part of the decoding budget until it is decoded: until
// release is called, or until the next request. One request at a time may use it.
func holdBudget(ctx context.Context) (_ context.Context, release func()) {
	held := &heldBudget{func() {}}
	return context.WithValue(ctx, heldKey{}, held), func() { held.release() }
}

// releaseHeld releases the part that the answer before holds. It is called before each request: a question that waits
// for a node must hold nothing, or one node could keep the whole process from decoding.
func releaseHeld(ctx context.Context) {
	if held, ok := ctx.Value(heldKey{}).(*heldBudget); ok {
		held.release()
		held.release = func() {}
	}
}

// boundAnswer reads an answer whole, and refuses it before it is decoded if it is too large, compressed, or a batch with
// more elements than the request. What a node sends costs up to forty times its bytes when go-ethereum decodes it, so
// the answer also waits for its part of budget. It returns the answer, from which it makes the response's new body.
func boundAnswer(req *http.Request, resp *http.Response, budget *decode.Budget) ([]byte, error) {
	source := http.MaxBytesReader(nil, resp.Body, maxAnswer)
	failed := resp.StatusCode < 200 || resp.StatusCode > 299
	if failed {
		source = io.NopCloser(io.LimitReader(resp.Body, maxRefusal)) // its words are at the beginning
	}
	if encoding := resp.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		if !failed {
			return nil, errCompressed
		}
		source = http.NoBody // the status says enough
	}
	body, err := io.ReadAll(source)
	if err != nil {
		return nil, err
	}
	counter := decode.Counter{Limit: maxAnswerTokens}
	if !counter.Add(body) {
		return nil, errTooLarge
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
	held, ok := req.Context().Value(heldKey{}).(*heldBudget)
	if !ok {
		return body, nil
	}
	release, err := budget.Acquire(req.Context(), max(len(body), bytesPerToken*counter.Tokens()))
	if err != nil {
		return nil, err
	}
	held.release = release
	return body, nil
}

// isArray reports whether JSON text is an array.
func isArray(text []byte) bool { return bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("[")) }

// countCalls counts the calls of a request: the elements of a batch, else one.
func countCalls(req *http.Request) (int, error) {
	sent, err := req.GetBody()
	if err != nil {
		return 0, err
	}
	text, err := io.ReadAll(sent)
	if err != nil || !isArray(text) {
		return 1, err
	}
	counter := decode.Counter{Limit: len(text)}
	counter.Add(text)
	return counter.Elements, nil
}
