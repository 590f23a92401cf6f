package erc8004

import (
	"bytes"
	"encoding/json"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/strictjson"
)

// maxNumber bounds a number in a feedback file: the length of its text in characters, and its exponent. Valid values
// are smaller: |value| is at most 1e38 with 18 decimals, and an id has at most 78 digits.
const maxNumber = 100

// FeedbackFacts holds the fields of a NewFeedback event that ERC-8004 repeats in the feedback's file.
type FeedbackFacts struct {
	ChainID       uint64         // together with Identity, the file's agentRegistry
	Identity      common.Address // the identity registry
	AgentID       *big.Int
	Client        common.Address
	Value         *big.Int // the decimal is Value / 10^ValueDecimals
	ValueDecimals uint8
	Tag1, Tag2    string
	Endpoint      string
}

// CrossCheck returns the names of the fields in which a feedback file contradicts its event, in the order
// agentRegistry, agentId, clientAddress, value (or score), valueDecimals, tag1, tag2, endpoint. It returns nil for a
// file that is not a JSON object or is beyond decode.Modest. The caller must bound the file's size.
//
// Writers differ, so a member agrees if any of its readings matches the event:
//   - a missing or null member agrees, and so does an empty string;
//   - agentId may be a number, a string, or one of the short forms "chain:id", "eip155:chain:id" and
//     "eip155:chain:registry:id";
//   - value may be the event's integer, or the decimal itself (99.77 for 9977 with 2 decimals), with any
//     valueDecimals, because a writer of 99.77 also writes 100 for 10000. It may also express the same decimal with
//     other valueDecimals; then neither field is reported;
//   - score, which older files contain instead of value, may be that value, or the decimal rounded up or down;
//   - addresses may be in CAIP-10 form or bare, in any case;
//   - an endpoint agrees if the event's endpoint is empty, because older events have none. A tag that the event lacks
//     is reported.
//
// Numbers are compared exactly, so a number that its writer rounded to a double differs. clientAddress must be the
// submitter of the feedback. If someone else authored it, the file names that author in
// proofOfParticipation.reviewerAddress (x402), which is not compared.
func CrossCheck(file []byte, e FeedbackFacts) []string {
	file = bytes.TrimSpace(bytes.TrimPrefix(file, []byte("\xef\xbb\xbf")))
	if len(file) == 0 || file[0] != '{' || !decode.Modest(file) {
		return nil
	}
	root, fault := strictjson.Parse(file, strictjson.Options{LastWins: true})
	if fault != nil {
		return nil
	}
	doc, _ := root.Object()
	var out []string
	compare := func(name string, agrees func(v *strictjson.Value) bool) {
		if v := findMember(doc, name); saysSomething(v) && !agrees(v) {
			out = append(out, name)
		}
	}
	compare("agentRegistry", func(v *strictjson.Value) bool { return e.isAccount(textOf(v), e.Identity) })
	compare("agentId", e.isAgent)
	compare("clientAddress", func(v *strictjson.Value) bool { return e.isAccount(textOf(v), e.Client) })
	if e.Value != nil {
		e.compareAmounts(doc, compare)
	}
	isTag := func(tag string) func(*strictjson.Value) bool {
		return func(v *strictjson.Value) bool { return isText(v) && SameText(textOf(v), strings.TrimSpace(tag)) }
	}
	compare("tag1", isTag(e.Tag1))
	compare("tag2", isTag(e.Tag2))
	compare("endpoint", func(v *strictjson.Value) bool {
		return e.Endpoint == "" || isText(v) &&
			SameText(lowerURLScheme(textOf(v)), lowerURLScheme(strings.TrimSpace(e.Endpoint)))
	})
	return out
}

// compareAmounts compares value, or the score of older files, and valueDecimals.
func (e FeedbackFacts) compareAmounts(doc *strictjson.Object, compare func(string, func(*strictjson.Value) bool)) {
	name := "value"
	if !saysSomething(findMember(doc, name)) {
		name = "score"
	}
	decimal := scaleDown(new(big.Rat).SetInt(e.Value), int64(e.ValueDecimals))
	value, decimals := parseNumber(textOf(findMember(doc, name))), parseNumber(textOf(findMember(doc, "valueDecimals")))
	same := false // value and decimals together express the event's decimal
	if value != nil && decimals != nil && decimals.IsInt() && decimals.Sign() >= 0 &&
		decimals.Cmp(big.NewRat(maxNumber, 1)) <= 0 {
		same = scaleDown(value, decimals.Num().Int64()).Cmp(decimal) == 0
	}
	compare(name, func(*strictjson.Value) bool {
		switch {
		case value == nil:
			return false
		case same, value.Cmp(new(big.Rat).SetInt(e.Value)) == 0, value.Cmp(decimal) == 0:
			return true
		}
		gap := new(big.Rat).Sub(value, decimal)
		return name == "score" && value.IsInt() && gap.Abs(gap).Cmp(big.NewRat(1, 1)) < 0
	})
	compare("valueDecimals", func(*strictjson.Value) bool {
		return same || decimals != nil && decimals.Cmp(big.NewRat(int64(e.ValueDecimals), 1)) == 0
	})
}

// isAccount reports whether text is the address want on the event's chain, in CAIP-10 form or bare.
func (e FeedbackFacts) isAccount(text string, want common.Address) bool {
	if parts := strings.Split(strings.ToLower(text), ":"); len(parts) == 3 && parts[0] == "eip155" &&
		e.isChain(parts[1]) {
		text = parts[2]
	}
	return common.IsHexAddress(text) && common.HexToAddress(text) == want
}

func (e FeedbackFacts) isChain(text string) bool {
	id, err := strconv.ParseUint(text, 10, 64)
	return err == nil && id == e.ChainID
}

// isAgent reports whether an agentId is the event's, in any of its forms.
func (e FeedbackFacts) isAgent(v *strictjson.Value) bool {
	if e.AgentID == nil {
		return true
	}
	id := textOf(v)
	if i := strings.LastIndexByte(id, ':'); i >= 0 {
		where := strings.ToLower(id[:i])
		id = id[i+1:]
		chain, prefixed := strings.CutPrefix(where, "eip155:")
		if !e.isChain(chain) && (!prefixed || !e.isAccount(where, e.Identity)) {
			return false
		}
	}
	n := parseNumber(id)
	return n != nil && n.IsInt() && n.Num().Cmp(e.AgentID) == 0
}

// saysSomething reports whether a member is present and neither null nor an empty string.
func saysSomething(v *strictjson.Value) bool {
	return v != nil && v.Data != nil && (!isText(v) || textOf(v) != "")
}

func isText(v *strictjson.Value) bool {
	_, ok := v.Data.(string)
	return ok
}

// textOf returns the trimmed text of a string, or the text of a number. It returns "" for anything else.
func textOf(v *strictjson.Value) string {
	if v == nil {
		return ""
	}
	switch data := v.Data.(type) {
	case string:
		return strings.TrimSpace(data)
	case json.Number:
		return data.String()
	}
	return ""
}

// parseNumber parses a decimal number with an optional exponent. It returns nil if text is no such number, or if it
// is beyond maxNumber.
func parseNumber(text string) *big.Rat {
	if text == "" || len(text) > maxNumber || strings.Trim(text, "0123456789+-.eE") != "" {
		return nil
	}
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		exponent, err := strconv.Atoi(text[i+1:])
		if err != nil || exponent < -maxNumber || exponent > maxNumber {
			return nil
		}
	}
	n, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil
	}
	return n
}

// scaleDown returns n / 10^decimals.
func scaleDown(n *big.Rat, decimals int64) *big.Rat {
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(decimals), nil)
	return new(big.Rat).Quo(n, new(big.Rat).SetInt(power))
}

// SameText compares text from the chain, or from a file, with text of a job. Bytes that Postgres or JSON cannot store
// became U+FFFD in the job: one per invalid byte, or one for several. So any run of such characters equals any other
// run.
func SameText(a, b string) bool { return a == b || repairText(a) == repairText(b) }

// repairText replaces each run of NUL, invalid bytes and U+FFFD with a single U+FFFD.
func repairText(s string) string {
	var b strings.Builder
	var last rune
	for _, r := range s { // range decodes invalid bytes as U+FFFD
		if r == 0 {
			r = utf8.RuneError
		}
		if r != utf8.RuneError || last != r {
			b.WriteRune(r)
		}
		last = r
	}
	return b.String()
}
