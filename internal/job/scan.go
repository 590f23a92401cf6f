package job

import (
	"encoding/hex"
	"encoding/json"
	"math/big"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"
)

const maxText = MaxBytes // a string is bounded by its job

// scan reads fields of an object and keeps the first refusal, so that readers need not stop at each line.
type scan struct {
	o      *object
	limits Limits
	err    *Refusal
}

func (s *scan) fail(r *Refusal) {
	if s.err == nil {
		s.err = r
	}
}

// node gives a field that is there and not null.
func (s *scan) node(name string) *node {
	if n := s.o.fields[name]; n != nil && n.value != nil {
		return n
	}
	return nil
}

func (s *scan) has(name string) bool { return s.node(name) != nil }

func (s *scan) text(name string, limit int) string {
	n := s.node(name)
	if n == nil {
		return ""
	}
	v, ok := n.value.(string)
	switch {
	case !ok:
		s.fail(refuse(n.path, "must be a string"))
	case len(v) > limit:
		s.fail(refuse(n.path, "is longer than %d bytes", limit))
	}
	return v
}

func (s *scan) bool(name string, fallback bool) bool {
	n := s.node(name)
	if n == nil {
		return fallback
	}
	v, ok := n.value.(bool)
	if !ok {
		s.fail(refuse(n.path, "must be true or false"))
	}
	return v
}

// integer reads a decimal string or an exact JSON number, from 0 (or -limit, when signed) to limit.
func (s *scan) integer(name string, limit int64, signed bool) *big.Int {
	return s.bounded(name, big.NewInt(limit), signed)
}

func (s *scan) bounded(name string, limit *big.Int, signed bool) *big.Int {
	n := s.node(name)
	if n == nil {
		return new(big.Int)
	}
	v, r := whole10(n)
	if r != nil {
		s.fail(r)
		return new(big.Int)
	}
	switch {
	case !signed && v.Sign() < 0:
		s.fail(refuse(n.path, "must not be negative"))
	case v.CmpAbs(limit) > 0:
		s.fail(refuse(n.path, "must be at most %s", limit))
	default:
		return v
	}
	return new(big.Int)
}

// whole10 reads an integer: a string of decimal digits, or a number that JSON readers keep exactly (within 53 bits).
func whole10(n *node) (*big.Int, *Refusal) {
	switch v := n.value.(type) {
	case string:
		digits := strings.TrimPrefix(v, "-")
		if digits == "" || len(digits) > 80 || strings.Trim(digits, "0123456789") != "" {
			return nil, refuse(n.path, "must be a whole decimal number")
		}
		i, _ := new(big.Int).SetString(v, 10)
		return i, nil
	case json.Number:
		i, ok := new(big.Int).SetString(v.String(), 10)
		if !ok {
			return nil, refuse(n.path, "must be a whole number without fraction or exponent")
		}
		if i.BitLen() > 53 {
			return nil, refuse(n.path, "is wider than 53 bits: give it as a decimal string, a number may have lost digits")
		}
		return i, nil
	}
	return nil, refuse(n.path, "must be a whole number or a decimal string")
}

func (s *scan) uint(name string, limit uint64) uint64 {
	return s.bounded(name, new(big.Int).SetUint64(limit), false).Uint64()
}

// chainID is an EIP-155 chain id; the database keeps 63 bits.
func (s *scan) chainID(name string) uint64 {
	id := s.uint(name, 1<<63-1)
	if id == 0 && s.err == nil {
		s.fail(refuse(name, "must be at least 1"))
	}
	return id
}

// agentID is an ERC-721 token id, uint256.
func (s *scan) agentID(name string) *big.Int {
	n := s.node(name)
	if n == nil {
		return new(big.Int)
	}
	v, r := whole10(n)
	switch {
	case r != nil:
		s.fail(r)
		return new(big.Int)
	case v.Sign() < 0:
		s.fail(refuse(n.path, "must not be negative"))
	case v.BitLen() > 256:
		s.fail(refuse(n.path, "is %d bits wide; an id has at most 256", v.BitLen()))
	}
	return v
}

// index is 1-based and uint64.
func (s *scan) index(name string) uint64 {
	i := s.uint(name, 1<<64-1)
	if i == 0 && s.err == nil {
		s.fail(refuse(name, "must be at least 1"))
	}
	return i
}

// value is int128 as the registry bounds it: |value| ≤ 1e38.
func (s *scan) value(name string) *big.Int {
	return s.bounded(name, new(big.Int).Exp(big.NewInt(10), big.NewInt(38), nil), true)
}

// address takes 0x and 40 hex digits; one in mixed case must carry the right checksum (EIP-55).
func (s *scan) address(name string) common.Address {
	n := s.node(name)
	if n == nil {
		return common.Address{}
	}
	v, _ := n.value.(string)
	digits, ok := strings.CutPrefix(v, "0x")
	if !ok || !isHex(digits, 40) {
		s.fail(refuse(n.path, "must be an address: 0x and 40 hex digits"))
		return common.Address{}
	}
	a := common.HexToAddress(v)
	if digits != strings.ToLower(digits) && digits != strings.ToUpper(digits) && a.Hex() != v {
		s.fail(refuse(n.path, "has a wrong checksum (EIP-55): a digit may be wrong"))
	}
	if a == (common.Address{}) {
		s.fail(refuse(n.path, "is the zero address"))
	}
	return a
}

// hash takes 0x and 64 hex digits; absent is zero.
func (s *scan) hash(name string) common.Hash {
	n := s.node(name)
	if n == nil {
		return common.Hash{}
	}
	v, _ := n.value.(string)
	digits, ok := strings.CutPrefix(v, "0x")
	if !ok || !isHex(digits, 64) {
		s.fail(refuse(n.path, "must be a hash: 0x and 64 hex digits"))
		return common.Hash{}
	}
	return common.HexToHash(v)
}

func isHex(s string, digits int) bool {
	if len(s) != digits {
		return false
	}
	_, err := hex.DecodeString(s)
	return err == nil
}

// sub reads a nested object; nil when absent. Unknown names in it are refused.
func (s *scan) sub(name string, allowed ...string) *scan {
	n := s.node(name)
	if n == nil {
		return nil
	}
	o, ok := n.value.(*object)
	if !ok {
		s.fail(refuse(n.path, "must be an object"))
		return nil
	}
	for _, given := range o.names {
		known := false
		for _, a := range allowed {
			known = known || a == given
		}
		if !known {
			s.fail(refuse(o.fields[given].path, "is not a field of %s", n.path))
			return nil
		}
	}
	return &scan{o: o, limits: s.limits}
}

// strings reads a list of strings.
func (s *scan) strings(name string, most int) []string {
	n := s.node(name)
	if n == nil {
		return nil
	}
	list, ok := n.value.([]*node)
	if !ok || len(list) > most {
		s.fail(refuse(n.path, "must be a list of at most %s strings", strconv.Itoa(most)))
		return nil
	}
	out := make([]string, len(list))
	for i, e := range list {
		if out[i], ok = e.value.(string); !ok {
			s.fail(refuse(e.path, "must be a string"))
		}
	}
	return out
}
