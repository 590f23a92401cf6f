package transport

import (
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/agentherald/herald/internal/netguard"
)

// What mcp-go says only in the text of an error. The pinned version's texts are tested in foreign_test.go; look there when it changes.
const (
	foreignContentType = "unexpected content type" // "…: " and the type when there is one
	foreignNoID        = "response should contain RPC id"
	foreignNoResponse  = "unexpected nil response"
)

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
