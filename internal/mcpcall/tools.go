package mcpcall

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/mcpcall/arguments"
	"github.com/agentherald/herald/internal/mcpcall/transport"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/text"
)

// Bounds of a tool list. An honest agent is far below them.
const (
	maxListPages = 20
	maxListTools = 1000
	maxToolName  = 256     // bytes; the specification allows 128 characters
	maxListBytes = 1 << 20 // all schemas that are kept of one agent
	toolBytes    = 512     // what a tool costs in memory beside its name and schema
)

// ToolSet is what an agent offers.
type ToolSet struct {
	Tools    []Tool
	Server   ServerInfo
	Protocol string    // the revision spoken
	Listed   time.Time // when the agent said so
	Cut      bool      // the list was longer than is read
}

// Outline is the set without its schemas, which may be large: {} stands for each.
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

// ServerInfo is what the agent calls itself: foreign text, cleaned and short.
type ServerInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Tool is one tool of an agent.
type Tool struct {
	Name        string
	InputSchema json.RawMessage // as sent; nil when there was none

	schema *arguments.Schema // of InputSchema, shared by copies; nil for a Tool that did not come from a list
}

// Fit returns args as t's input schema wants them, validated (see arguments.Schema.Fit); the error is a *SchemaError.
// args is not changed. A tool without a schema takes anything.
func Fit(t Tool, args map[string]any) (map[string]any, error) {
	schema := t.schema
	if schema == nil {
		schema = arguments.NewSchema(t.InputSchema, nil)
	}
	return schema.Fit(args)
}

// Find returns the tool called name, else the first of aliases that exists.
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

// Aliases returns the other spellings under which a tool "agent.receiveX" is known: agent_receiveX, receiveX and
// agent/receiveX. Other names have none: what an operator calls agent.delete is not to become delete.
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
	cursor string // "" on the last page
	cut    bool
}

// readTools reads a tools/list result. A tool that makes no sense is left out, so that it does not hide the others.
// With mirrored, so is one whose x-mcp-header annotations are invalid: revision 2026-07-28 says that it must not be
// called over HTTP.
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
		if mirrored && transport.MarkedBadly(entry) {
			continue
		}
		if string(t.InputSchema) == "null" {
			t.InputSchema = nil
		}
		page.tools = append(page.tools, Tool{Name: t.Name, InputSchema: t.InputSchema})
	}
	return page, nil
}

// maskSecrets leaves out tools that an agent named after a credential it was sent, and masks credentials in schemas,
// which are quoted where arguments do not fit. r may be nil.
func (p *toolPage) maskSecrets(r *secret.Masker) {
	if r = r.WithoutWords(); r == nil {
		return
	}
	p.tools = slices.DeleteFunc(p.tools, func(t Tool) bool { return r.Replace(t.Name) != t.Name })
	for i, t := range p.tools {
		raw := string(t.InputSchema)
		if clean := r.Replace(raw); clean != raw {
			p.tools[i].InputSchema = json.RawMessage(clean) // if that is no JSON any more, Fit says so
		}
	}
}

// toolList gathers pages within the bounds.
type toolList struct {
	tools []Tool
	bytes int
	cut   bool

	onCompiled func() // see arguments.NewSchema
}

// addPage reports whether there is room for more.
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
		t.schema = arguments.NewSchema(slices.Clone(t.InputSchema), l.onCompiled) // not a slice of the whole answer
		t.InputSchema = t.schema.Raw()
		l.bytes += len(t.InputSchema)
		l.tools = append(l.tools, t)
	}
	return true
}

// keepCompiled keeps the compiled schemas of an earlier list for the tools that did not change, and reports whether any
// did.
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
