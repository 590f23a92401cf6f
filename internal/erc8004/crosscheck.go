package erc8004

import (
	"bytes"
	"encoding/json"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/strictjson"
)

// maxNumber bounds the numbers in a feedback file that parseNumber accepts: the length of the text in characters, and
// the exponent. Valid values are smaller: |value| is at most 1e38 with 18 decimals, and an id has at most 78 digits.
const maxNumber = 100

// FeedbackFacts contains the fields of a NewFeedback event that, by ERC-8004, the feedback's file repeats.
type FeedbackFacts struct {
	ChainID       uint64         // together with Identity, agentRegistry in the file
	Identity      common.Address // the identity registry
	AgentID       *big.Int
	Client        common.Address
	Value         *big.Int // the rating is Value / 10^ValueDecimals; nil: it is not compared
	ValueDecimals uint8
	Tag1, Tag2    string
	Endpoint      string
}

// CrossCheck returns the names of the members in which a feedback file contradicts its event, in the order
// agentRegistry, agentId, clientAddress, value (or score), valueDecimals, tag1, tag2, endpoint. It returns nil for a
// file that is not a JSON object or that decode.Modest refuses. The caller must bound the file's size.
//
// Programs write these members in different forms. A member agrees if the event matches one of its forms:
//   - a member that is missing, null or an empty string agrees;
//   - agentId may be a number, a string, or one of the short forms "chain:id", "eip155:chain:id" and
//     "eip155:chain:registry:id";
//   - value may be the event's integer (9977 with 2 decimals) or the rating (99.77). It may also express the same
//     rating with other valueDecimals (998 with 1 decimal for 9980 with 2); then valueDecimals agrees too;
//   - score, which older files contain instead of value, may be that value, or the rating rounded up or down;
//   - addresses may be in CAIP-10 form or bare, in any case;
//   - an endpoint agrees if the event has an empty endpoint, because older events have none. A tag does not agree if
//     the event has an empty tag.
//
// Numbers are compared exactly: a number that the program rounded to a double differs. clientAddress must be the
// account that submitted the feedback. The file may name another author in proofOfParticipation.reviewerAddress (x402),
// which is not compared.
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

// compareAmounts calls compare for value, or score in a file without value, and for valueDecimals. compare is that of
// CrossCheck: it reports the named member of doc if the function returns false for it.
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

// isAccount reports whether text is the address want, bare or in CAIP-10 form with the event's chain.
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

// isAgent reports whether v, the agentId of a file, is that of the event in one of the forms of CrossCheck.
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

// saysSomething reports whether v is present and neither null nor an empty string.
func saysSomething(v *strictjson.Value) bool {
	return v != nil && v.Data != nil && (!isText(v) || textOf(v) != "")
}

func isText(v *strictjson.Value) bool {
	_, ok := v.Data.(string)
	return ok
}

// textOf returns the trimmed text of a JSON string, the text of a JSON number, and "" for any other value or nil.
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

// parseNumber parses a decimal number with an optional exponent. It returns nil if text is not such a number or exceeds
// maxNumber.
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

// SameText reports whether a text from the chain or a file equals a text of a job. Jobs contain U+FFFD instead of bytes
// that Postgres or JSON cannot store, one for each byte or one for several. So SameText considers any two runs of such
// bytes and U+FFFD equal.
func SameText(a, b string) bool { return a == b || repairText(a) == repairText(b) }

// repairText replaces each run of NUL, invalid UTF-8 and U+FFFD in s with a single U+FFFD.
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
