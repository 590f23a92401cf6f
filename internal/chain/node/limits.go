package node

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Nodes limit the ranges and answers of eth_getLogs and the number of requests, each with its own messages and codes.
// This file distinguishes three cases: a range limit narrows the range, a rate limit makes the client wait, and any
// other error may be temporary or specific to that node. limits_test.go contains the providers' messages.

// rateWords occur in the refusals of nodes that limit the rate of requests, in lower case.
var rateWords = []string{"too many requests", "rate limit", "request rate", "requests per second", "compute units",
	"/sec", "throttl", "request limit", "daily request count"}

// isRateLimit reports whether a node refused a request because of too many requests. err must be masked.
func isRateLimit(err error) bool {
	var answered *rpcError
	var status *statusError
	switch {
	case errors.As(err, &answered):
		return answered.code == http.StatusTooManyRequests || containsAny(answered.message, rateWords)
	case errors.As(err, &status):
		return status.code == http.StatusTooManyRequests
	}
	return false
}

// isBehind reports whether the node has not reached the range. A narrower range would not help, but another node may.
func isBehind(err error) bool {
	var answered *rpcError
	return errors.As(err, &answered) &&
		containsAny(answered.message, []string{"beyond current head", "block range is in the future"})
}

// isInability reports whether a node does not offer something, has dropped it (code 4444 of EIP-4444, or a block's
// state), or failed internally. A refusal that asks for a narrower range is not an inability.
func isInability(err error) bool {
	const methodNotFound, internalError, notSupported, prunedHistory = -32601, -32603, -32004, 4444
	answered, ok := errors.AsType[*rpcError](err)
	if !ok || containsAny(answered.message, rangeWords) {
		return false
	}
	return slices.Contains([]int{methodNotFound, internalError, notSupported, prunedHistory}, answered.code) ||
		missingState.MatchString(answered.message) || containsAny(answered.message, []string{"indexing is in progress"})
}

// missingState matches the errors of nodes without an archive for the state of an old block: go-ethereum ("missing
// trie node", "historical state … is not available", "required historical state unavailable"), Erigon and Reth
// ("state at block … is pruned"), Nethermind ("No state available for block"), Besu ("World state unavailable"), and
// providers that sell archive nodes separately ("archive").
var missingState = regexp.MustCompile(
	`(?i)missing trie node|state .*(not available|unavailable|pruned)|no state available|archive`)

// IsStateMissing reports whether a node has dropped the state of an old block.
func IsStateMissing(err error) bool {
	answered, ok := errors.AsType[*rpcError](err)
	return ok && missingState.MatchString(answered.message)
}

func containsAny(message string, words []string) bool {
	message = strings.ToLower(message)
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(message, word) })
}

// IsUnsupported reports whether a node does not offer the method, or does not accept a block's hash for it.
func (p *Pool) IsUnsupported(err error) bool {
	const invalidRequest, methodNotFound, invalidParams, methodNotSupported = -32600, -32601, -32602, -32004
	var answered *rpcError
	return errors.As(p.maskFailure(err), &answered) && slices.Contains(
		[]int{invalidRequest, methodNotFound, invalidParams, methodNotSupported}, answered.code)
}

// IsRefusedRange reports whether the node may answer a request for fewer blocks.
func IsRefusedRange(err error) bool {
	var answered *rpcError
	var status *statusError
	return !isRateLimit(err) && !isBehind(err) && (errors.Is(err, ErrTooLarge) || errors.As(err, &answered) ||
		errors.As(err, &status) || errors.Is(err, context.DeadlineExceeded))
}

// rangeWords identify range limits among refusals whose code also has other meanings.
var rangeWords = []string{"range", "results", "response size", "response too large", "blocks"}

// IsRangeLimit reports whether the node, or the bound of its answers, would refuse the same range again.
func IsRangeLimit(err error) bool {
	const limitExceeded = -32005 // used for too many results, too many blocks and too many requests
	var answered *rpcError
	var status *statusError
	switch {
	case errors.Is(err, ErrTooLarge):
		return true
	case isRateLimit(err), isBehind(err):
		return false
	case errors.As(err, &answered):
		return answered.code != limitExceeded || containsAny(answered.message, rangeWords)
	case errors.As(err, &status):
		return slices.Contains([]int{http.StatusBadRequest, http.StatusRequestEntityTooLarge}, status.code)
	}
	return false
}

// IsTooLarge reports whether an answer exceeds the bound of answers, or the node's own bound of results or bytes. If
// none of several nodes answered, it reports whether that is so for one of them.
func IsTooLarge(err error) bool {
	var answered *rpcError
	var status *statusError
	var all *nodesError
	if errors.As(err, &all) {
		return slices.ContainsFunc(all.failures, func(f nodeFailure) bool { return IsTooLarge(f.err) })
	}
	words := []string{"results", "response size", "response too large"}
	return errors.Is(err, ErrTooLarge) || errors.As(err, &answered) && containsAny(answered.message, words) ||
		errors.As(err, &status) && (status.code == http.StatusRequestEntityTooLarge || containsAny(status.body, words))
}

// IsRefusedForGood reports whether the node will never search even one block: it has no such method, has dropped its
// old blocks (EIP-4444), or the answer exceeds the bound. Other refusals may be temporary.
func IsRefusedForGood(err error) bool {
	const methodNotFound, methodNotSupported, prunedHistory = -32601, -32004, 4444
	var answered *rpcError
	return errors.Is(err, ErrTooLarge) ||
		errors.As(err, &answered) && slices.Contains([]int{methodNotFound, methodNotSupported, prunedHistory},
			answered.code)
}

// Patterns of the messages in which nodes state the range that they accept: its first and last block, or its width.
var (
	statedHexRange = regexp.MustCompile(`\[0x([0-9a-fA-F]+),\s*0x([0-9a-fA-F]+)\]`)
	statedRange    = regexp.MustCompile(`retry with the range (\d+)-(\d+)`)
	statedWidth    = regexp.MustCompile(`(?i)(?:limited to (?:a )?|up to a |at most |maximum is set to |` +
		`requested blocks is |max(?:imum)?(?: block)? range:? (?:= )?|\(maximum |blocks distance: |` +
		`range [\d,]+ exceeds limit of |range limit |range (?:greater than|exceeds) |smaller than size |` +
		`for your plan \([\d,]+ > |max is |ranges over )([\d,]+)(k?)`)
)

// findStatedWidth returns the number of blocks that a refusal states as acceptable, or 0 if it states none.
func findStatedWidth(err error) uint64 {
	var answered *rpcError
	var status *statusError
	var message string
	switch {
	case errors.As(err, &answered):
		message = answered.message
	case errors.As(err, &status):
		message = status.body
	}
	for base, stated := range map[int]*regexp.Regexp{16: statedHexRange, 10: statedRange} {
		if m := stated.FindStringSubmatch(message); m != nil {
			from, errFrom := strconv.ParseUint(m[1], base, 64)
			to, errTo := strconv.ParseUint(m[2], base, 64)
			if errFrom == nil && errTo == nil && from <= to && to-from < 1<<32 {
				return to - from + 1
			}
		}
	}
	if m := statedWidth.FindStringSubmatch(message); m != nil {
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

// NarrowWidth returns the number of blocks to ask for after the node refused asked blocks: the number that the node
// stated, or half. Some nodes state the very range that they refused; then it is half.
func NarrowWidth(err error, asked uint64) uint64 {
	if stated := findStatedWidth(err); stated > 0 && stated < asked {
		return stated
	}
	return max(asked/2, 1)
}
