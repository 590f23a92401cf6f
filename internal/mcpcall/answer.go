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

// Answer is what a tool that ran answered.
type Answer struct {
	// Raw is the result as received, bounded by Config.MaxAnswerBytes; credentials that the agent echoes are masked. It
	// may hold anything JSON can, also what Postgres cannot store.
	Raw json.RawMessage
	// Text is the text of the answer (its text blocks, else its structured content), cleaned, at most 16 KiB.
	Text string
	// IsError: the tool ran and says that it failed or refused.
	IsError bool
	// Protocol is the revision spoken; as Endpoint.ProtocolHint it spares the next worker a guess.
	Protocol string
	// Unreadable: a result came, so the tool ran, but all or part of it is in no form this version knows:
	// structuredContent without content, an unknown kind of block, a task, no content at all.
	Unreadable bool
	// Preferences are what the agent asks for in _meta, beside its answer; nil: nothing.
	Preferences *Preferences
}

// readAnswer reads a tools/call result. Only two results are errors, because they say that the tool did not run to its
// end or that the result must be treated as invalid: *InputRequiredError and, for an unknown resultType,
// *BadAnswerError. mask, which may be nil, is for the text before it is cut, so that no half of a credential is left at
// its end.
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

// result is a tools/call result as the specification has it.
type result struct {
	Content           []block
	StructuredContent json.RawMessage
	IsError           bool
	ResultType        string
	InputRequests     json.RawMessage
	Meta              json.RawMessage
}

// block is one block of content, as far as it is looked at.
type block struct {
	Type string  `json:"type"`
	Text *string `json:"text"`
}

// readResult reads what it can, each part for itself; false when there is no content, or something is of another type
// than it should be. Of a name that is there twice encoding/json makes what it likes.
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

// readBlocks reads content; false when there is none or it is no list. A block that is no such thing has no type.
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

// maskSecrets masks credentials that the agent sent back in Raw. r may be nil.
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
	if !json.Valid(a.Raw) { // a credential that spans JSON's own syntax
		a.Raw, a.Unreadable = nil, true
	}
}

// Object is what the tool answered as JSON: its structured content, else its first block of text. It may be no JSON at
// all; nil: there is neither.
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
