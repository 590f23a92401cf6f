package transport

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/mark3labs/mcp-go/mcp"
)

// Revision 2026-07-28 lets a tool's schema mark arguments with x-mcp-header: over HTTP they are sent as headers too.
// mcp-go does so for the tools that it has listed.

// mirrorMark is in the JSON of every tool that marks an argument.
var mirrorMark = []byte("x-mcp-header")

// maxMirroredBytes bounds the tools that mcp-go is handed of one agent, in bytes of JSON. It keeps every one of them
// for good, decoded: up to mirroredGrowth times as much.
const (
	maxMirroredBytes = 64 << 10
	mirroredGrowth   = 64
)

// MarkedBadly: a tool's x-mcp-header marks are invalid, so that it must not be called over HTTP. entry is its JSON in a
// tools/list.
func MarkedBadly(entry json.RawMessage) bool {
	if !bytes.Contains(entry, mirrorMark) {
		return false
	}
	var tool mcp.Tool
	return json.Unmarshal(entry, &tool) == nil && mcp.ValidateParamHeaderAnnotations(&tool) != nil
}

// MirroredBytes is about what mcp-go holds of the tools that it knows.
func (t *Recording) MirroredBytes() int64 { return mirroredGrowth * t.mirroredBytes.Load() }

// keepMirrored is a tools/list result with the tools that mcp-go is to know: those of whose arguments it has to mirror
// some into headers. Left out are also those that it cannot read, over which it would give up the whole list, or would
// write to the process's log. One listing at a time.
func (t *Recording) keepMirrored(raw json.RawMessage) json.RawMessage {
	var result struct {
		Tools []json.RawMessage `json:"tools"`
	}
	if json.Unmarshal(raw, &result) != nil {
		return raw
	}
	kept := slices.DeleteFunc(result.Tools, func(entry json.RawMessage) bool { return !t.noteMirrored(entry) })
	out, err := json.Marshal(map[string]any{"tools": kept})
	if err != nil {
		return raw
	}
	return out
}

// noteMirrored reports whether a tool is handed to mcp-go, and counts it. One that it knows in an older form is
// told anew.
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
