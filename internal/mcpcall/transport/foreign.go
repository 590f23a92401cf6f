package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/netguard"
)

// What mcp-go says only in the text of an error, or by the form of its messages. The pinned version's texts are tested
// in foreign_test.go; look there when it changes.
const (
	foreignContentType = "unexpected content type" // "…: " and the type when there is one
	foreignNoID        = "response should contain RPC id"
	foreignNoResponse  = "unexpected nil response"
)

// foreignRequestPrefix is how mcp-go's messages with an id begin; a number follows.
var foreignRequestPrefix = []byte(`{"jsonrpc":"2.0","id":`)

// foreignRequestID is the id of a request that mcp-go wrote, in mcp-go's spelling of ids.
func foreignRequestID(line []byte) (string, bool) {
	rest, ok := bytes.CutPrefix(line, foreignRequestPrefix)
	if !ok {
		return "", false
	}
	digits, _, ok := bytes.Cut(rest, []byte(","))
	if !ok {
		return "", false
	}
	id, err := strconv.ParseInt(string(digits), 10, 64)
	return mcp.NewRequestId(id).String(), err == nil
}

// DescribeUnusable says why mcp-go could not take an answer for one, as a clause about the answer.
func DescribeUnusable(err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	message := err.Error()
	switch {
	case errors.As(err, &syntax), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "it is not JSON"
	case errors.As(err, &kind):
		return "it is JSON of another form than MCP has"
	case strings.Contains(message, foreignContentType):
		if _, named, ok := strings.Cut(message, "content type: "); ok && named != "" {
			return "its content type is " + named + ", neither JSON nor an event stream"
		}
		return "its content type is neither JSON nor an event stream"
	case strings.Contains(message, foreignNoID):
		return "it carries no id, so that nobody knows which request it answers"
	case strings.Contains(message, foreignNoResponse):
		return "its event stream ended before the result"
	}
	return netguard.Explain("the agent", 0, err).Error()
}
