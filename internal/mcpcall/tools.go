package mcpcall

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/mcpcall/arguments"
)

// Bounds of a tool list. Honest agents stay far below them.
const (
	maxListPages = 20
	maxCursor    = 8 << 10 // bytes of a page's cursor; a listing keeps all of them until it ends
	maxListTools = 1000
	maxToolName  = 256     // bytes of a name; MCP allows 128 characters
	maxListBytes = 1 << 20 // bytes of all schemas of an agent
	toolBytes    = 512     // estimated memory, in bytes, of a tool in addition to its name and schema
)

// ToolSet is the list of an agent's tools.
type ToolSet struct {
	Tools    []Tool
	Server   ServerInfo
	Protocol string    // the MCP revision of the connection
	Listed   time.Time // when the list was fetched
	Cut      bool      // the list exceeded the bounds, and the rest was dropped
}

// Outline returns a copy of the set in which {} replaces each schema. Schemas may be large.
func (s ToolSet) Outline() *ToolSet {
	tools := s.Tools
	s.Tools = make([]Tool, len(tools))
	for i, t := range tools {
		s.Tools[i].Name = t.Name
		if len(t.InputSchema) > 0 {
			s.Tools[i].InputSchema = json.RawMessage(`{}`)
		}
	}
	return &s
}

// ServerInfo is the name and version of the agent's MCP server, as the agent reports them. Both are shortened to one
// line.
type ServerInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Tool is one tool of an agent.
type Tool struct {
	Name        string
	InputSchema json.RawMessage // as the agent sent it; nil if it sent none

	schema *arguments.Schema // InputSchema for Fit, shared by copies; nil for a Tool that listTools did not return
}

// Fit returns args converted to the types that t's input schema requires, and validated (arguments.Schema.Fit). It does
// not change args itself. The error is a *SchemaError. A tool without a schema accepts any arguments.
func Fit(t Tool, args map[string]any) (map[string]any, error) {
	schema := t.schema
	if schema == nil {
		schema = arguments.NewSchema(t.InputSchema, nil)
	}
	return schema.Fit(args)
}

// Find returns the tool called name. Without such a tool, it returns the one called by the first of aliases that
// exists. It returns false if neither exists.
func Find(tools []Tool, name string, aliases []string) (Tool, bool) {
	for _, want := range append([]string{name}, aliases...) {
		for _, t := range tools {
			if t.Name == want {
				return t, true
			}
		}
	}
	return Tool{}, false
}

// Aliases returns the names under which the tool agent.receiveX may also be found: agent_receiveX, receiveX and
// agent/receiveX. It returns nil for any other name. For example, a job for agent.delete must not call a tool delete.
func Aliases(name string) []string {
	short, ok := strings.CutPrefix(name, "agent.")
	if !ok || !strings.HasPrefix(short, "receive") || short == "receive" {
		return nil
	}
	return []string{"agent_" + short, short, "agent/" + short}
}

// toolPage is one page of tools/list.
type toolPage struct {
	tools  []Tool
	cursor string // of the next page; "" on the last page
	cut    bool   // the page had more than maxListTools tools, and the rest was dropped
}

// readTools parses a tools/list result. It skips malformed tools, so that the others can be used. With mirrored it also
// skips tools with invalid x-mcp-header annotations, because revision 2026-07-28 forbids calling them over HTTP.
func readTools(raw json.RawMessage, mirrored bool) (toolPage, error) {
	var result struct {
		Tools      []json.RawMessage `json:"tools"`
		NextCursor json.RawMessage   `json:"nextCursor"`
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return toolPage{}, &BadAnswerError{Why: "tools/list brought no list of tools"}
	}
	var page toolPage
	_ = json.Unmarshal(result.NextCursor, &page.cursor)
	if len(result.Tools) > maxListTools {
		result.Tools, page.cut = result.Tools[:maxListTools], true
	}
	for _, entry := range result.Tools {
		var t struct {
			Name        string          `json:"name"`
			InputSchema json.RawMessage `json:"inputSchema"`
		}
		if json.Unmarshal(entry, &t) != nil || t.Name == "" || len(t.Name) > maxToolName ||
			text.Sanitize(t.Name) != t.Name {
			continue
		}
		if mirrored && isMarkedBadly(t.InputSchema) {
			continue
		}
		if string(t.InputSchema) == "null" {
			t.InputSchema = nil
		}
		page.tools = append(page.tools, Tool{Name: t.Name, InputSchema: t.InputSchema})
	}
	return page, nil
}

// maskSecrets removes tools whose name contains a credential of r, and masks the credentials of r in schemas, because
// errors quote schemas. r may be nil.
func (p *toolPage) maskSecrets(r *secret.Masker) {
	if r = r.WithoutWords(); r == nil {
		return
	}
	p.tools = slices.DeleteFunc(p.tools, func(t Tool) bool { return r.Replace(t.Name) != t.Name })
	for i, t := range p.tools {
		raw := string(t.InputSchema)
		if clean := r.Replace(raw); clean != raw {
			p.tools[i].InputSchema = json.RawMessage(clean) // if this is no longer valid JSON, Fit returns an error
		}
	}
}

// toolList collects the tools of all pages within the bounds.
type toolList struct {
	tools []Tool
	bytes int  // of all schemas
	cut   bool // tools were dropped because of a bound

	onCompiled func() // for arguments.NewSchema
}

// addPage adds the tools of a page whose names are new. It returns false if a tool exceeds a bound and the rest was
// dropped.
func (l *toolList) addPage(page toolPage) bool {
	l.cut = l.cut || page.cut
	for _, t := range page.tools {
		if len(l.tools) >= maxListTools || l.bytes+len(t.InputSchema) > maxListBytes {
			l.cut = true
			return false
		}
		if slices.ContainsFunc(l.tools, func(known Tool) bool { return known.Name == t.Name }) {
			continue
		}
		t.schema = arguments.NewSchema(slices.Clone(t.InputSchema), l.onCompiled) // Clone: free the whole answer
		t.InputSchema = t.schema.Raw()
		l.bytes += len(t.InputSchema)
		l.tools = append(l.tools, t)
	}
	return true
}

// keepCompiled replaces each tool of l that is also in old, with the same schema, by that of old, whose schema may be
// compiled already. It reports whether the lists differ.
func (l *toolList) keepCompiled(old []Tool) (changed bool) {
	changed = len(old) != len(l.tools)
	for i, t := range l.tools {
		j := slices.IndexFunc(old, func(o Tool) bool { return o.Name == t.Name })
		if j < 0 || !old[j].schema.Equal(t.schema) {
			changed = true
			continue
		}
		l.tools[i] = old[j]
	}
	return changed
}
