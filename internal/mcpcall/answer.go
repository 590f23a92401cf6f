package mcpcall

import (
	"bytes"
	"encoding/json"
	"strings"
)

// maxAnswerText bounds Answer.Text, in bytes.
const maxAnswerText = 16 << 10

// Answer is what a tool that ran answered.
type Answer struct {
	// Raw is the result as received, bounded by Config.MaxAnswerBytes; credentials that the agent echoes are masked. It may hold
	// anything JSON can, also what Postgres cannot store.
	Raw json.RawMessage
	// Text is the text of the answer (its text blocks, else its structured content), cleaned, at most 16 KiB.
	Text string
	// IsError: the tool ran and says that it failed or refused.
	IsError bool
	// Protocol is the revision spoken; as Endpoint.ProtocolHint it spares the next worker a guess.
	Protocol string
	// Unreadable: a result came, so the tool ran, but all or part of it is in no form this version knows: structuredContent without
	// content, an unknown kind of block, a task, no content at all.
	Unreadable bool
}

// readAnswer reads a tools/call result. Only two results are errors, because they say that the tool did not run to its end or that
// the result must be treated as invalid: *InputRequiredError and, for an unknown resultType, *BadAnswerError.
func readAnswer(raw json.RawMessage) (Answer, error) {
	a := Answer{Raw: raw}
	var r map[string]json.RawMessage
	if json.Unmarshal(raw, &r) != nil || r == nil {
		a.Unreadable = true
		return a, nil
	}

	if is, ok := r["isError"]; ok {
		if json.Unmarshal(is, &a.IsError) != nil {
			a.Unreadable = true
		}
	}
	if resultType, ok := r["resultType"]; ok {
		var t string
		if json.Unmarshal(resultType, &t) != nil {
			t = "?"
		}
		switch t {
		case "", "complete":
		case "task":
			a.Unreadable = true
		case "input_required":
			var requests map[string]json.RawMessage
			_ = json.Unmarshal(r["inputRequests"], &requests)
			return a, &InputRequiredError{Later: len(requests) == 0}
		default:
			return a, &BadAnswerError{Why: "its resultType is unknown"}
		}
	}

	var text strings.Builder
	var blocks []json.RawMessage
	if json.Unmarshal(r["content"], &blocks) != nil || len(blocks) == 0 && r["content"] == nil {
		a.Unreadable = true
	}
	for _, block := range blocks {
		var b struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		err := json.Unmarshal(block, &b)
		switch {
		case err == nil && b.Type == "text" && b.Text != nil:
			if text.Len() > 0 {
				text.WriteByte('\n')
			}
			if text.Len() < maxAnswerText {
				text.WriteString(*b.Text)
			}
		case err == nil && (b.Type == "image" || b.Type == "audio" || b.Type == "resource" || b.Type == "resource_link"):
		default:
			a.Unreadable = true
		}
	}
	if structured := r["structuredContent"]; text.Len() == 0 && len(structured) > 0 {
		var compact bytes.Buffer
		if json.Compact(&compact, structured) == nil {
			text.Write(compact.Bytes()[:min(compact.Len(), maxAnswerText)])
		}
	}
	t := text.String()
	a.Text = cleanString(strings.ToValidUTF8(t[:min(len(t), maxAnswerText)], "\uFFFD"))
	return a, nil
}

// redact masks credentials that the agent sent back. r may be nil.
func (a *Answer) redact(r *strings.Replacer) {
	if r == nil {
		return
	}
	a.Text = r.Replace(a.Text)
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
