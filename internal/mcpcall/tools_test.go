package mcpcall

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/mcpcall/arguments"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestReadTools(t *testing.T) {
	t.Parallel()
	page, err := readTools(json.RawMessage(`{"tools":[{"name":"a","inputSchema":{"type":"object","anyOf":[{}],"x-own":1}},7,{"name":""},
		{"name":"b\u0000"},{"inputSchema":{}},{"name":"c"},{"name":"d","inputSchema":null}],"nextCursor":"n"}`), false)
	heraldtest.Must(t, err)
	if page.cursor != "n" || len(page.tools) != 3 || page.tools[0].Name != "a" || page.tools[1].Name != "c" || page.tools[2].InputSchema != nil {
		t.Fatalf("got %+v", page)
	}
	if got := string(page.tools[0].InputSchema); got != `{"type":"object","anyOf":[{}],"x-own":1}` {
		t.Errorf("schema not as sent: %s", got)
	}
	for _, bad := range []string{`null1`, `[]`, `{"tools":7}`} {
		if _, err := readTools(json.RawMessage(bad), false); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

func TestToolListBounds(t *testing.T) {
	t.Parallel()
	var l toolList
	big := strings.Repeat(" ", arguments.MaxSchemaBytes-2)
	for i := 0; ; i++ {
		raw := fmt.Sprintf(`{"tools":[{"name":"t%d","inputSchema":{%s}}],"nextCursor":"x"}`, i, big)
		page, err := readTools(json.RawMessage(raw), false)
		heraldtest.Must(t, err)
		if !l.addPage(page) {
			break
		}
	}
	if !l.cut || l.bytes > maxListBytes || len(l.tools) != maxListBytes/arguments.MaxSchemaBytes {
		t.Errorf("kept %d tools, %d bytes, cut %v", len(l.tools), l.bytes, l.cut)
	}

	huge, err := readTools(json.RawMessage(`{"tools":[{"name":"huge","inputSchema":{"description":"`+strings.Repeat("x", arguments.MaxSchemaBytes)+`"}}]}`), false)
	heraldtest.Must(t, err)
	l = toolList{}
	l.addPage(huge)
	_, err = Fit(l.tools[0], map[string]any{})
	heraldtest.Fails(t, "Fit on a schema that was too long", err, "longer than")
}

func TestFindAndAliases(t *testing.T) {
	t.Parallel()
	tools := []Tool{{Name: "receiveFeedback"}, {Name: "agent_receiveFeedback"}, {Name: "other"}}
	got, ok := Find(tools, "agent.receiveFeedback", Aliases("agent.receiveFeedback"))
	if !ok || got.Name != "agent_receiveFeedback" {
		t.Errorf("got %q, %v", got.Name, ok)
	}
	if _, ok := Find(tools, "agent.receiveResponse", Aliases("agent.receiveResponse")); ok {
		t.Error("found a tool that is not there")
	}
	for _, foreign := range []string{"other", "agent.", "agent.delete", "agent.receive", "receiveFeedback"} {
		if Aliases(foreign) != nil {
			t.Errorf("%s has aliases", foreign)
		}
	}
}

func FuzzTools(f *testing.F) {
	f.Add([]byte(`{"tools":[{"name":"a","inputSchema":{"type":"object","properties":{"value":{"type":"number"}},"additionalProperties":false}}],"nextCursor":"n"}`))
	f.Add([]byte(`{"tools":[{"name":"a","inputSchema":{"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}}}}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		page, err := readTools(raw, false)
		if err != nil {
			return
		}
		var l toolList
		l.addPage(page)
		for _, tool := range l.tools {
			args := map[string]any{"value": "5", "score": json.Number("1"), "n": nil, "file": json.RawMessage(`{"a":[1,2]}`)}
			out, err := Fit(tool, args)
			if err == nil {
				_, err = json.Marshal(out)
				heraldtest.Must(t, err)
			}
		}
	})
}
