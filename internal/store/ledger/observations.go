package ledger

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/store/storable"
)

// Registration is a summary of an agent's registration document and its endpoint (agents.registration). The author of
// the document determines all fields except Binding.
type Registration struct {
	Name     string `json:"name,omitempty"`
	Document string `json:"document"`          // URI without query; "data:" for a document that is on chain
	Source   string `json:"source"`            // how the document is identified, as resolver.Target.DocumentSource
	From     string `json:"from"`              // position of the endpoint in the document, such as "services[2]"
	Binding  string `json:"binding,omitempty"` // as resolver.Target.Binding
}

// maxDocumentBytes bounds the stored URI of a document. The agent's row, which every record copies, must stay small.
const maxDocumentBytes = 200

// Encode returns the registration as JSON with bounded texts that Postgres can store, or nil for nil.
func (r *Registration) Encode() []byte {
	if r == nil {
		return nil
	}
	out := Registration{Name: storable.Text(r.Name, storable.MaxName),
		Document: storable.Text(r.Document, maxDocumentBytes), Source: r.Source,
		From: storable.Text(r.From, storable.MaxName), Binding: r.Binding}
	encoded, _ := json.Marshal(out) // strings cannot fail
	return encoded
}

// KnownTool is an entry of the list of an agent's tools (agents.tools).
type KnownTool struct {
	Name   string `json:"name"`
	Schema bool   `json:"schema"` // the tool has an input schema
}

// maxToolsBytes limits the result of ToolList. It is below storable.MaxSide, the limit of stored JSON, so that a long
// list is not cut within a tool.
const maxToolsBytes = storable.MaxSide - 64

// ToolList encodes tools as JSON for the column agents.tools, [{"name": …, "schema": …}, …]. It omits the last tools if
// the list would exceed maxToolsBytes.
func ToolList(tools []KnownTool) json.RawMessage {
	out := []byte{'['}
	for i, t := range tools {
		entry, err := json.Marshal(KnownTool{Name: storable.Text(t.Name, storable.MaxName), Schema: t.Schema})
		if err != nil || len(out)+len(entry) > maxToolsBytes {
			break
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, entry...)
	}
	return append(out, ']')
}

// LatencyBounds are the upper bounds of the buckets of agent_hours.latency, the histogram of the calls' durations. A
// last bucket, without a bound, counts slower calls. The bounds must not change, because stored rows depend on
// them, and record.sql contains their number.
var LatencyBounds = [...]time.Duration{10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute}

// LatencyBucket returns the index of the bucket of the call's duration, from 0. It returns -1 if no call was sent or
// its duration is unknown.
func (o Outcome) LatencyBucket() int {
	if !o.Called || o.CallTook <= 0 {
		return -1
	}
	i, _ := slices.BinarySearch(LatencyBounds[:], o.CallTook)
	return i
}

// LatencyPosition returns LatencyBucket plus one, since Postgres counts the elements of an array from 1. It returns nil
// if LatencyBucket returns -1.
func (o Outcome) LatencyPosition() *int32 {
	i := int32(o.LatencyBucket() + 1)
	if i == 0 {
		return nil
	}
	return &i
}
