package job

import (
	"encoding/hex"
	"encoding/json"
	"math/big"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/common"
)

const (
	// maxExact is the largest integer that every JSON reader keeps (RFC 8259 §6).
	maxExact = 1<<53 - 1
	maxText  = MaxBytes // a string is bounded by its job
)

// scan reads fields of an object and keeps the first refusal, so that readers need not stop at each line.
type scan struct {
	o      *object
	limits Limits
	base   string            // path of the object
	names  map[string]string // where a field of ours is in the old form, for refusals of missing ones
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

// at is the path of a field, there or not.
func (s *scan) at(name string) string {
	if n := s.o.fields[name]; n != nil {
		return n.path()
	}
	if old, ok := s.names[name]; ok {
		return old
	}
	return join(s.base, name)
}

func (s *scan) text(name string, limit int) string {
	n := s.node(name)
	if n == nil {
		return ""
	}
	v, ok := n.value.(string)
	switch {
	case !ok:
		s.fail(refuse(n.path(), "must be a string"))
	case len(v) > limit:
		s.fail(refuse(n.path(), "is longer than %d bytes", limit))
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
		s.fail(refuse(n.path(), "must be true or false"))
	}
	return v
}

// whole reads an integer from least to most; an absent one is 0. Refused ones are 0 too, so that nobody computes with them.
func (s *scan) whole(name string, least, most *big.Int) *big.Int {
	n := s.node(name)
	if n == nil {
		return new(big.Int)
	}
	v, r := integer(n)
	switch {
	case r != nil:
		s.fail(r)
	case v.Cmp(least) < 0 && least.Sign() == 0:
		s.fail(refuse(n.path(), "must not be negative"))
	case v.Cmp(least) < 0:
		s.fail(refuse(n.path(), "must be at least %s", least))
	case v.Cmp(most) > 0:
		s.fail(refuse(n.path(), "must be at most %s", most))
	default:
		return v
	}
	return new(big.Int)
}

// integer reads a decimal string, or a number whose value is a whole one that JSON readers keep exactly.
func integer(n *node) (*big.Int, *Refusal) {
	switch v := n.value.(type) {
	case string:
		digits := strings.TrimPrefix(v, "-")
		switch {
		case digits == "" || strings.Trim(digits, "0123456789") != "":
			return nil, refuse(n.path(), "must be a whole decimal number")
		case len(digits) > maxDigits:
			return nil, refuse(n.path(), "is a number of %d digits, far too wide", len(digits))
		}
		i, _ := new(big.Int).SetString(v, 10)
		return i, nil
	case json.Number:
		r, ok := new(big.Rat).SetString(v.String()) // bounded by storable
		if !ok || !r.IsInt() {
			return nil, refuse(n.path(), "must be a whole number")
		}
		if r.Num().CmpAbs(big.NewInt(maxExact)) > 0 {
			return nil, refuse(n.path(), "is wider than 53 bits: give it as a decimal string, since a number may have lost digits")
		}
		return new(big.Int).Set(r.Num()), nil
	}
	return nil, refuse(n.path(), "must be a whole number or a decimal string")
}

func (s *scan) uint(name string, least, most uint64) uint64 {
	return s.whole(name, new(big.Int).SetUint64(least), new(big.Int).SetUint64(most)).Uint64()
}

// chainID is an EIP-155 chain id; the database keeps 63 bits.
func (s *scan) chainID(name string) uint64 { return s.uint(name, 1, 1<<63-1) }

// agentID is an ERC-721 token id, uint256; 0 is an agent.
func (s *scan) agentID(name string) *big.Int {
	n := s.node(name)
	if n == nil {
		return new(big.Int)
	}
	v, r := integer(n)
	switch {
	case r != nil:
		s.fail(r)
	case v.Sign() < 0:
		s.fail(refuse(n.path(), "must not be negative"))
	case v.BitLen() > 256:
		s.fail(refuse(n.path(), "is %d bits wide; an id has at most 256", v.BitLen()))
	default:
		return v
	}
	return new(big.Int)
}

// index is a feedback's number, uint64 and counted from 1.
func (s *scan) index(name string) uint64 { return s.uint(name, 1, 1<<64-1) }

// value is int128 as the registry bounds it: |value| ≤ 1e38.
func (s *scan) value(name string) *big.Int {
	most := new(big.Int).Exp(big.NewInt(10), big.NewInt(38), nil)
	return s.whole(name, new(big.Int).Neg(most), most)
}

// address takes 0x and 40 hex digits; one in mixed case must carry the right checksum (EIP-55).
func (s *scan) address(name string) common.Address {
	n := s.node(name)
	if n == nil {
		return common.Address{}
	}
	v, _ := n.value.(string)
	digits, ok := strings.CutPrefix(v, "0x")
	a := common.HexToAddress(v)
	switch {
	case !ok || !isHex(digits, 2*common.AddressLength):
		s.fail(refuse(n.path(), "must be an address: 0x and 40 hex digits"))
	case digits != strings.ToLower(digits) && digits != strings.ToUpper(digits) && a.Hex() != v:
		s.fail(refuse(n.path(), "has a wrong checksum (EIP-55): a digit may be wrong"))
	case a == common.Address{}:
		s.fail(refuse(n.path(), "is the zero address"))
	default:
		return a
	}
	return common.Address{}
}

// hash takes 0x and 64 hex digits; absent is zero.
func (s *scan) hash(name string) common.Hash {
	n := s.node(name)
	if n == nil {
		return common.Hash{}
	}
	v, _ := n.value.(string)
	digits, ok := strings.CutPrefix(v, "0x")
	if !ok || !isHex(digits, 2*common.HashLength) {
		s.fail(refuse(n.path(), "must be a hash: 0x and 64 hex digits"))
		return common.Hash{}
	}
	return common.HexToHash(v)
}

// keyHash is a hash that the key is made of, so that it must say something.
func (s *scan) keyHash(name, why string) common.Hash {
	h := s.hash(name)
	if h == (common.Hash{}) {
		s.fail(refuse(s.at(name), "is missing or zero: %s", why))
	}
	return h
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
		s.fail(refuse(n.path(), "must be an object"))
		return nil
	}
	for _, given := range o.names {
		if !slices.Contains(allowed, given) {
			s.fail(refuse(o.fields[given].path(), "is not a field of %s", n.path()))
			return nil
		}
	}
	return &scan{o: o, limits: s.limits, base: n.path()}
}

// strings reads a list of strings.
func (s *scan) strings(name string, most int) []string {
	n := s.node(name)
	if n == nil {
		return nil
	}
	list, ok := n.value.([]*node)
	if !ok || len(list) > most {
		s.fail(refuse(n.path(), "must be a list of at most %d strings", most))
		return nil
	}
	var out []string
	for _, e := range list {
		v, ok := e.value.(string)
		if !ok {
			s.fail(refuse(e.path(), "must be a string"))
		}
		out = append(out, v)
	}
	return out
}

// object reads an object with any fields, as JSON.
func (s *scan) object(name string) *node {
	n := s.node(name)
	if n == nil {
		return nil
	}
	if _, ok := n.value.(*object); !ok {
		s.fail(refuse(n.path(), "must be an object"))
		return nil
	}
	return n
}
