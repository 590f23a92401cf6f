package mcpcall

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/mark3labs/mcp-go/mcp"
)

// Revision 2026-07-28 lets a tool's schema mark arguments with x-mcp-header. Over HTTP they are also sent as headers.
// mcp-go would do that for the tools that it has listed, but it keeps all of them decoded, without a bound. So it gets
// no list (transport.ErrResultTaken), and this file adds the headers.

// mirrorMark occurs in every schema that marks an argument.
var mirrorMark = []byte("x-mcp-header")

// mirrorsArguments reports whether marked arguments are also sent as headers.
func (c *conn) mirrorsArguments() bool { return c.modern && c.kind == TransportHTTP }

// mirrorArguments returns the headers for those arguments that the schema of the tool marks. It marks none if the tool
// was not listed.
func (c *conn) mirrorArguments(tool string, args json.RawMessage) http.Header {
	headers := http.Header{}
	c.mu.Lock()
	var schema json.RawMessage
	if c.tools != nil && c.mirrorsArguments() {
		t, _ := Find(c.tools.Tools, tool, nil)
		schema = t.InputSchema
	}
	c.mu.Unlock()
	if !bytes.Contains(schema, mirrorMark) {
		return headers
	}
	params, _ := json.Marshal(map[string]json.RawMessage{"arguments": args})
	for name, value := range mcp.GenerateParamHeaders(&mcp.Tool{RawInputSchema: schema}, params) {
		headers.Set(name, value)
	}
	return headers
}

// isMarkedBadly reports whether the marks of a schema are invalid. A tool with such a schema must not be called over
// HTTP.
func isMarkedBadly(schema json.RawMessage) bool {
	return bytes.Contains(schema, mirrorMark) &&
		mcp.ValidateParamHeaderAnnotations(&mcp.Tool{RawInputSchema: schema}) != nil
}
