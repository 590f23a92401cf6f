package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/base/netguard"
)

// Information that mcp-go provides only in the text of its errors and the form of its messages. foreign_test.go checks
// the texts of the pinned version; run it after each upgrade.
const (
	foreignContentType = "unexpected content type" // followed by ": " and the type, if there is one
	foreignNoID        = "response should contain RPC id"
	foreignNoResponse  = "unexpected nil response"
	foreignNoResume    = "failed to resume the SSE stream"
)

// foreignRequestPrefix is the beginning of mcp-go's messages with an id; a number follows.
var foreignRequestPrefix = []byte(`{"jsonrpc":"2.0","id":`)

// foreignRequestID returns the id of a request that mcp-go wrote, in the form of mcp.RequestId.String.
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

// StreamEnded reports whether err, an error of mcp-go or nil, says that the event stream of an answer ended before the
// result, and was not resumed.
func StreamEnded(err error) bool {
	return err != nil &&
		(strings.Contains(err.Error(), foreignNoResponse) || strings.Contains(err.Error(), foreignNoResume))
}

// DescribeUnusable returns a clause that explains why mcp-go rejected an answer.
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
		return "it has no id, so it cannot be matched with a request"
	}
	return netguard.Explain("the agent", 0, err).Error()
}
