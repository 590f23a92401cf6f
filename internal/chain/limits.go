package chain

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Nodes bound the ranges and the answers of eth_getLogs and the number of requests, each in words and codes of its own.
// What is recognised here decides between three ways on: a range limit narrows the range, a rate limit waits, and
// everything else may pass or be another node's to answer. limits_test.go has the providers' texts.

// rateWords are in the refusals of nodes that were asked too often, in small letters.
var rateWords = []string{"too many requests", "rate limit", "request rate", "requests per second", "compute units",
	"/sec", "throttl", "request limit", "daily request count"}

// isRateLimit tells whether a node was asked too often. err is masked.
func isRateLimit(err error) bool {
	var answered *rpcError
	var status *statusError
	switch {
	case errors.As(err, &answered):
		return answered.code == http.StatusTooManyRequests || containsAny(answered.message, rateWords)
	case errors.As(err, &status):
		return status.code() == http.StatusTooManyRequests
	}
	return false
}

// isBehind tells whether the node has not reached the range: no narrower one would help, but another node may.
func isBehind(err error) bool {
	var answered *rpcError
	return errors.As(err, &answered) &&
		containsAny(answered.message, []string{"beyond current head", "block range is in the future"})
}

// isInability tells whether a node says that it does not offer something, has dropped it (4444 of EIP-4444, a state), or
// failed inside. A range that is to be narrowed is none.
func isInability(err error) bool {
	const methodNotFound, internalError, notSupported, prunedHistory = -32601, -32603, -32004, 4444
	var answered *rpcError
	if !errors.As(err, &answered) || containsAny(answered.message, rangeWords) {
		return false
	}
	return slices.Contains([]int{methodNotFound, internalError, notSupported, prunedHistory}, answered.code) ||
		missingState.MatchString(answered.message) || containsAny(answered.message, []string{"indexing is in progress"})
}

func containsAny(message string, words []string) bool {
	message = strings.ToLower(message)
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(message, word) })
}

// isRefusedRange tells whether fewer blocks may be answered.
func isRefusedRange(err error) bool {
	var answered *rpcError
	var status *statusError
	return !isRateLimit(err) && !isBehind(err) && (errors.Is(err, errTooLarge) || errors.As(err, &answered) ||
		errors.As(err, &status) || errors.Is(err, context.DeadlineExceeded))
}

// rangeWords are in refusals that one code also means something else by.
var rangeWords = []string{"range", "results", "response size", "response too large", "blocks"}

// isRangeLimit tells whether the node, or the bound of its answers, would refuse the same range again.
func isRangeLimit(err error) bool {
	const limitExceeded = -32005 // of too many results, too many blocks or too many requests
	var answered *rpcError
	var status *statusError
	switch {
	case errors.Is(err, errTooLarge):
		return true
	case isRateLimit(err), isBehind(err):
		return false
	case errors.As(err, &answered):
		return answered.code != limitExceeded || containsAny(answered.message, rangeWords)
	case errors.As(err, &status):
		return slices.Contains([]int{http.StatusBadRequest, http.StatusRequestEntityTooLarge}, status.code())
	}
	return false
}

// isRefusedForGood tells whether the node will not search even one block, whenever it is asked: it has no such method,
// has dropped its old blocks (EIP-4444), or the answer is larger than what is read. Other refusals may be trouble that
// passes.
func isRefusedForGood(err error) bool {
	const methodNotFound, methodNotSupported, prunedHistory = -32601, -32004, 4444
	var answered *rpcError
	return errors.Is(err, errTooLarge) ||
		errors.As(err, &answered) && slices.Contains([]int{methodNotFound, methodNotSupported, prunedHistory},
			answered.code)
}

// How nodes say which range they would take: from where to where, or how many blocks.
var (
	statedHexRange = regexp.MustCompile(`\[0x([0-9a-fA-F]+),\s*0x([0-9a-fA-F]+)\]`)
	statedRange    = regexp.MustCompile(`retry with the range (\d+)-(\d+)`)
	statedWidth    = regexp.MustCompile(`(?i)(?:limited to (?:a )?|up to a |at most |maximum is set to |` +
		`requested blocks is |max(?:imum)?(?: block)? range:? (?:= )?|\(maximum |blocks distance: |` +
		`range [\d,]+ exceeds limit of |range limit |range (?:greater than|exceeds) |smaller than size |` +
		`for your plan \([\d,]+ > |max is |ranges over )([\d,]+)(k?)`)
)

// findStatedWidth reads from a refusal how many blocks the node would take; 0 if it does not say.
func findStatedWidth(err error) uint64 {
	var answered *rpcError
	var status *statusError
	var said string
	switch {
	case errors.As(err, &answered):
		said = answered.message
	case errors.As(err, &status):
		said = status.body
	}
	for base, stated := range map[int]*regexp.Regexp{16: statedHexRange, 10: statedRange} {
		if m := stated.FindStringSubmatch(said); m != nil {
			from, errFrom := strconv.ParseUint(m[1], base, 64)
			to, errTo := strconv.ParseUint(m[2], base, 64)
			if errFrom == nil && errTo == nil && from <= to && to-from < 1<<32 {
				return to - from + 1
			}
		}
	}
	if m := statedWidth.FindStringSubmatch(said); m != nil {
		n, err := strconv.ParseUint(strings.ReplaceAll(m[1], ",", ""), 10, 32)
		if m[2] != "" {
			n *= 1000
		}
		if err == nil {
			return n
		}
	}
	return 0
}

// narrowWidth is how many blocks to ask for after so many were refused: what the node says, or half. Some nodes say
// the very range that they refused.
func narrowWidth(err error, asked uint64) uint64 {
	if stated := findStatedWidth(err); stated > 0 && stated < asked {
		return stated
	}
	return max(asked/2, 1)
}

// rangeWidth is how many blocks are asked for at once. It narrows when a node refuses and widens again, but not before
// many answers have come: a limit of the node stays, and one of results is of a stretch of dense blocks.
type rangeWidth struct {
	blocks uint64
	most   uint64
	held   int // answers to come before it widens
}

// holdAfterRefusal is how many answers a refusal keeps the range from widening for: so one question in as many is
// asked in vain where a limit stays.
const holdAfterRefusal = 64

func newRangeWidth(most uint64) rangeWidth { return rangeWidth{blocks: most, most: most} }

// narrow takes a refusal of so many blocks.
func (w *rangeWidth) narrow(err error, asked uint64) {
	w.blocks, w.held = narrowWidth(err, asked), holdAfterRefusal
}

// widen takes an answer.
func (w *rangeWidth) widen() {
	if w.held > 0 {
		w.held--
		return
	}
	w.blocks = min(w.blocks*2, w.most)
}
