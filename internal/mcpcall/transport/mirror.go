package transport

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/mark3labs/mcp-go/mcp"
)

// Revision 2026-07-28 lets a tool's schema mark arguments with x-mcp-header. Over HTTP they are also sent as headers.
// mcp-go does that for the tools that it has listed.

// mirrorMark occurs in the JSON of every tool that marks an argument.
var mirrorMark = []byte("x-mcp-header")

// maxMirroredBytes bounds the tools of one agent that are passed to mcp-go, in bytes of JSON. mcp-go keeps all of them
// as long as the client exists, decoded to up to mirroredGrowth times that size.
const (
	maxMirroredBytes = 64 << 10
	mirroredGrowth   = 64
)

// MarkedBadly reports whether a tool's x-mcp-header marks are invalid. Such a tool must not be called over HTTP. entry
// is the tool's JSON in a tools/list result.
func MarkedBadly(entry json.RawMessage) bool {
	if !bytes.Contains(entry, mirrorMark) {
		return false
	}
	var tool mcp.Tool
	return json.Unmarshal(entry, &tool) == nil && mcp.ValidateParamHeaderAnnotations(&tool) != nil
}

// MirroredBytes returns the approximate memory of the tools that mcp-go keeps.
func (t *Recording) MirroredBytes() int64 { return mirroredGrowth * t.mirroredBytes.Load() }

// keepMirrored returns a tools/list result that contains only the tools that mcp-go must know: those with arguments
// that it has to mirror into headers. It also removes tools that mcp-go cannot parse, because mcp-go would reject the
// whole list or log the error. A delivery and a health check may list the tools at the same time.
func (t *Recording) keepMirrored(raw json.RawMessage) json.RawMessage {
	var result struct {
		Tools []json.RawMessage `json:"tools"`
	}
	if json.Unmarshal(raw, &result) != nil {
		return raw
	}
	t.mirroring.Lock()
	defer t.mirroring.Unlock()
	kept := slices.DeleteFunc(result.Tools, func(entry json.RawMessage) bool { return !t.noteMirrored(entry) })
	out, err := json.Marshal(map[string]any{"tools": kept})
	if err != nil {
		return raw
	}
	return out
}

// noteMirrored reports whether a tool is passed to mcp-go, and counts its bytes. A tool that mcp-go already knows is
// passed again, so that a change becomes effective. The caller holds mirroring.
func (t *Recording) noteMirrored(entry json.RawMessage) bool {
	if len(entry) > maxMirroredBytes {
		return false
	}
	var named struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(entry, &named) != nil {
		return false
	}
	before, known := t.mirrored[named.Name]
	if !known && !bytes.Contains(entry, mirrorMark) ||
		int(t.mirroredBytes.Load())-before+len(entry) > maxMirroredBytes {
		return false
	}
	var tool mcp.Tool
	if json.Unmarshal(entry, &tool) != nil || mcp.ValidateParamHeaderAnnotations(&tool) != nil {
		return false
	}
	if t.mirrored == nil {
		t.mirrored = map[string]int{}
	}
	t.mirrored[named.Name] = len(entry)
	t.mirroredBytes.Add(int64(len(entry) - before))
	return true
}
