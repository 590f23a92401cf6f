package mcpcall

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/text"
)

// maxAnswerText bounds Answer.Text, in bytes.
const maxAnswerText = 16 << 10

// Answer is the result of a tool that ran.
type Answer struct {
	// Raw is the result as received, at most Config.MaxAnswerBytes. Credentials that the agent echoes are masked. It
	// can contain any valid JSON, including values that Postgres cannot store.
	Raw json.RawMessage
	// Text is the text of the answer: its text blocks, or else its structured content. It is sanitized and has at most
	// 16 KiB.
	Text string
	// IsError reports that the tool ran and that the agent marked the result as a failure or refusal.
	IsError bool
	// Protocol is the protocol revision of the connection. Passed on as Endpoint.ProtocolHint, it spares the next
	// worker a failed handshake.
	Protocol string
	// Unreadable reports that a result arrived, so the tool ran, but this version understands only part of it or
	// nothing: for example structuredContent without content, an unknown kind of block, a task, or no content at all.
	Unreadable bool
	// Preferences are the agent's requests in the _meta of the answer; nil without any.
	Preferences *Preferences
}

// readAnswer parses a tools/call result. It returns an error for two results only, because they mean that the tool did
// not run to its end or that the result is invalid: *InputRequiredError, and *BadAnswerError for an unknown resultType.
// mask may be nil; readAnswer masks the text before it truncates it, so that no part of a credential is left at the
// end.
func readAnswer(raw json.RawMessage, mask *secret.Masker) (Answer, error) {
	a := Answer{Raw: raw}
	r, ok := readResult(raw)
	a.IsError, a.Unreadable, a.Preferences = r.IsError, !ok, readPreferences(r.Meta)
	switch r.ResultType {
	case "", "complete":
	case "task":
		a.Unreadable = true
	case "input_required":
		var requests map[string]json.RawMessage
		_ = json.Unmarshal(r.InputRequests, &requests)
		return a, &InputRequiredError{Later: len(requests) == 0}
	default:
		return a, &BadAnswerError{Why: "its resultType is unknown"}
	}

	var shown strings.Builder
	for _, b := range r.Content {
		switch {
		case b.Type == "text" && b.Text != nil:
			if shown.Len() > 0 {
				shown.WriteByte('\n')
			}
			if shown.Len() < maxAnswerText {
				shown.WriteString(*b.Text)
			}
		case b.Type == "image" || b.Type == "audio" || b.Type == "resource" || b.Type == "resource_link":
		default:
			a.Unreadable = true
		}
	}
	if shown.Len() == 0 && len(r.StructuredContent) > 0 {
		var compact bytes.Buffer
		if json.Compact(&compact, r.StructuredContent) == nil {
			shown.Write(compact.Bytes())
		}
	}
	t := shown.String()
	if mask != nil {
		t = mask.Replace(t)
	}
	a.Text = text.Sanitize(strings.ToValidUTF8(t[:min(len(t), maxAnswerText)], "\uFFFD"))
	return a, nil
}

// result is a tools/call result as the MCP specification defines it.
type result struct {
	Content           []block
	StructuredContent json.RawMessage
	IsError           bool
	ResultType        string
	InputRequests     json.RawMessage
	Meta              json.RawMessage
}

// block is one content block; only the fields that readAnswer needs are parsed.
type block struct {
	Type string  `json:"type"`
	Text *string `json:"text"`
}

// readResult parses each member of the result on its own, so that one malformed member does not hide the others. ok is
// false if there is no content or if content or isError has the wrong type. If a name occurs twice, encoding/json
// decides which value counts.
func readResult(raw json.RawMessage) (r result, ok bool) {
	var parts struct {
		Content           json.RawMessage `json:"content"`
		StructuredContent json.RawMessage `json:"structuredContent"`
		IsError           json.RawMessage `json:"isError"`
		ResultType        json.RawMessage `json:"resultType"`
		InputRequests     json.RawMessage `json:"inputRequests"`
		Meta              json.RawMessage `json:"_meta"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return result{}, false
	}
	r = result{StructuredContent: parts.StructuredContent, InputRequests: parts.InputRequests,
		Meta: parts.Meta}
	r.Content, ok = readBlocks(parts.Content)
	if parts.IsError != nil && json.Unmarshal(parts.IsError, &r.IsError) != nil {
		ok = false
	}
	if parts.ResultType != nil && json.Unmarshal(parts.ResultType, &r.ResultType) != nil {
		r.ResultType = "?"
	}
	return r, ok
}

// readBlocks parses content. It returns false if content is missing or is not a list. A block that cannot be parsed
// gets an empty type.
func readBlocks(content json.RawMessage) ([]block, bool) {
	var each []json.RawMessage
	if json.Unmarshal(content, &each) != nil || each == nil {
		return nil, false
	}
	blocks := make([]block, len(each))
	for i, raw := range each {
		if json.Unmarshal(raw, &blocks[i]) != nil {
			blocks[i] = block{}
		}
	}
	return blocks, true
}

// maskSecrets masks credentials that the agent echoes in Raw. r may be nil.
func (a *Answer) maskSecrets(r *secret.Masker) {
	if r == nil {
		return
	}
	raw := string(a.Raw)
	clean := r.Replace(raw)
	if clean == raw {
		return
	}
	a.Raw = json.RawMessage(clean)
	if !json.Valid(a.Raw) { // the credential contained JSON syntax
		a.Raw, a.Unreadable = nil, true
	}
}

// Object returns the answer as JSON: its structured content, or else its first text block, which may not be valid JSON.
// It returns nil if there is neither.
func (a Answer) Object() json.RawMessage {
	r, _ := readResult(a.Raw)
	if first := bytes.TrimSpace(r.StructuredContent); len(first) > 0 && !bytes.Equal(first, []byte("null")) {
		return r.StructuredContent
	}
	for _, b := range r.Content {
		if b.Type == "text" && b.Text != nil {
			return json.RawMessage(*b.Text)
		}
	}
	return nil
}
