package mcpcall

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
)

// maxAnswerText is the largest size of Answer.Text, in bytes.
const maxAnswerText = 16 << 10

// Answer is the result of a tool call that the agent executed.
type Answer struct {
	// Raw is the JSON of the result as received, at most Config.MaxAnswerBytes, with the endpoint's credentials masked.
	// It may contain values that Postgres cannot store. It is nil if masking made it invalid.
	Raw json.RawMessage
	// Text is the text of the result: its text blocks or, without text blocks, its structured content. It contains no
	// control characters and has at most maxAnswerText bytes.
	Text string
	// IsError is the result's isError: the tool ran and failed, or refused the arguments.
	IsError bool
	// Protocol is the MCP revision of the connection. A caller that passes it as Endpoint.ProtocolHint of a later call
	// avoids a failed handshake.
	Protocol string
	// Unreadable reports that the package does not understand the whole result: for example because it has
	// structuredContent without content, an unknown type of block, a task, or no content. The tool ran nevertheless.
	Unreadable bool
}

// readAnswer parses a tools/call result. It returns an *InputRequiredError for a result that asks for input, and a
// *BadAnswerError for an unknown resultType. For any other result, even a malformed one, it returns an Answer, because
// the tool ran.
//
// mask, which may be nil, masks credentials in Answer.Text but not in Answer.Raw. The text is masked before it is
// truncated, so that no part of a credential remains at its end.
func readAnswer(raw json.RawMessage, mask *secret.Masker) (Answer, error) {
	a := Answer{Raw: raw}
	r, ok := readResult(raw)
	a.IsError, a.Unreadable = r.IsError, !ok
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

// result contains the members of a tools/call result that readAnswer uses.
type result struct {
	Content           []block
	StructuredContent json.RawMessage
	IsError           bool
	ResultType        string
	InputRequests     json.RawMessage
}

// block contains the members of a content block that readAnswer uses.
type block struct {
	Type string  `json:"type"`
	Text *string `json:"text"`
}

// readResult parses a tools/call result. It parses each member separately, so that one malformed member does not affect
// the others. ok is false if content is missing, or if content or isError has the wrong type. A resultType of the wrong
// type becomes "?".
func readResult(raw json.RawMessage) (r result, ok bool) {
	var parts struct {
		Content           json.RawMessage `json:"content"`
		StructuredContent json.RawMessage `json:"structuredContent"`
		IsError           json.RawMessage `json:"isError"`
		ResultType        json.RawMessage `json:"resultType"`
		InputRequests     json.RawMessage `json:"inputRequests"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return result{}, false
	}
	r = result{StructuredContent: parts.StructuredContent, InputRequests: parts.InputRequests}
	r.Content, ok = readBlocks(parts.Content)
	if parts.IsError != nil && json.Unmarshal(parts.IsError, &r.IsError) != nil {
		ok = false
	}
	if parts.ResultType != nil && json.Unmarshal(parts.ResultType, &r.ResultType) != nil {
		r.ResultType = "?"
	}
	return r, ok
}

// readBlocks parses the member content. It returns false if content is missing or not a list. A block that cannot be
// parsed has the empty type.
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

// maskSecrets masks the credentials of r in a.Raw. r may be nil. If a.Raw is no longer JSON then, maskSecrets sets it
// to nil and sets a.Unreadable.
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

// Objects returns the structured content of the result and its first text block, as far as it has them. The text may
// not be valid JSON.
func (a Answer) Objects() (found []json.RawMessage) {
	r, _ := readResult(a.Raw)
	if first := bytes.TrimSpace(r.StructuredContent); len(first) > 0 && !bytes.Equal(first, []byte("null")) {
		found = append(found, r.StructuredContent)
	}
	for _, b := range r.Content {
		if b.Type == "text" && b.Text != nil {
			return append(found, json.RawMessage(*b.Text))
		}
	}
	return found
}
