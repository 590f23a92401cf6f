package transport

import (
	"bytes"
	"encoding/json"
	"slices"

	mcptransport "github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
)

// encodeCall returns the JSON of a tools/call request whose arguments are encoded already. It is byte for byte what
// json.Marshal returns, which would parse the arguments twice more to make them compact. encodeCall returns nil for all
// other requests.
func encodeCall(request mcptransport.JSONRPCRequest) []byte {
	p, _ := request.Params.(mcp.CallToolParams)
	arguments, ok := p.Arguments.(json.RawMessage)
	if !ok || p.Task != nil || p.InputResponses != nil || p.RequestState != "" {
		return nil
	}
	id, err := request.ID.MarshalJSON()
	if err != nil {
		return nil
	}
	name, err := json.Marshal(p.Name)
	if err != nil {
		return nil
	}
	var meta []byte
	if p.Meta != nil {
		if meta, err = p.Meta.MarshalJSON(); err != nil {
			return nil
		}
		meta = slices.Concat([]byte(`,"_meta":`), meta)
	}
	return bytes.Join([][]byte{[]byte(`{"jsonrpc":"2.0","id":`), id,
		[]byte(`,"method":"tools/call","params":{"name":`), name,
		[]byte(`,"arguments":`), arguments, meta, []byte(`}}`)}, nil)
}
