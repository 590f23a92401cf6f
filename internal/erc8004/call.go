package erc8004

import (
	"encoding/binary"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
)

// PackTokenURI encodes tokenURI(uint256), the ERC-721 getter that holds what the ERC calls agentURI.
func PackTokenURI(agentID *big.Int) ([]byte, error) {
	return packCall([4]byte{0xc8, 0x7b, 0x56, 0xdd}, agentID)
}

// UnpackTokenURI decodes the string that tokenURI returned, unchanged.
func UnpackTokenURI(ret []byte) (string, error) {
	w := newABIWords(ret)
	s := w.readString(0, "tokenURI")
	return s, w.failed()
}

// PackOwnerOf encodes ownerOf(uint256).
func PackOwnerOf(agentID *big.Int) ([]byte, error) {
	return packCall([4]byte{0x63, 0x52, 0x21, 0x1e}, agentID)
}

// UnpackOwnerOf decodes the owner.
func UnpackOwnerOf(ret []byte) (common.Address, error) { return unpackAddress(ret, "ownerOf") }

// PackGetIdentityRegistry encodes getIdentityRegistry() of a reputation or validation registry.
func PackGetIdentityRegistry() []byte { return []byte{0xbc, 0x4d, 0x86, 0x1b} }

// UnpackGetIdentityRegistry decodes the registry's address.
func UnpackGetIdentityRegistry(ret []byte) (common.Address, error) {
	return unpackAddress(ret, "getIdentityRegistry")
}

// PackGetLastIndex encodes getLastIndex(uint256,address).
func PackGetLastIndex(agentID *big.Int, client common.Address) ([]byte, error) {
	return packCall([4]byte{0xf2, 0xd8, 0x17, 0x59}, agentID, packAddress(client))
}

// UnpackGetLastIndex decodes the newest feedback index of a client, 0 when there is none.
func UnpackGetLastIndex(ret []byte) (uint64, error) { return unpackUint64(ret, "getLastIndex") }

// PackReadFeedback encodes readFeedback(uint256,address,uint64). The selector never changed, the answer did.
func PackReadFeedback(agentID *big.Int, client common.Address, feedbackIndex uint64) ([]byte, error) {
	return packCall([4]byte{0x23, 0x2b, 0x08, 0x10}, agentID, packAddress(client), packUint64(feedbackIndex))
}

// StoredFeedback is what a registry keeps of a feedback. The endpoint, the URI and the hash are in the log only.
type StoredFeedback struct {
	Value         *big.Int
	ValueDecimals uint8
	LegacyScore   bool // a registry of 2025: Value is the score
	Tag1, Tag2    string
	Revoked       bool
}

// UnpackReadFeedback decodes all three forms that readFeedback had: (int128,uint8,string,string,bool) of today, the
// score with strings of late 2025, and (uint8,bytes32,bytes32,bool) of October 2025. They are told apart by where their
// first string lies.
func UnpackReadFeedback(ret []byte) (StoredFeedback, error) {
	var f StoredFeedback
	w := newABIWords(ret)
	score := func() {
		f.Value, f.LegacyScore = new(big.Int).SetUint64(uint64(w.readUint8(0, "score"))), true
	}
	second := newABIWords(ret).readUint64(1, "")
	switch {
	case len(ret) == 4*wordSize:
		score()
		f.Tag1, f.Tag2, f.Revoked = w.readTag32(1, "tag1"), w.readTag32(2, "tag2"), w.readBool(3, "isRevoked")
	case second == 4*wordSize:
		score()
		f.Tag1, f.Tag2, f.Revoked = w.readString(1, "tag1"), w.readString(2, "tag2"), w.readBool(3, "isRevoked")
	default:
		f.Value, f.ValueDecimals = w.readInt256(0, "value"), w.readUint8(1, "valueDecimals")
		f.Tag1, f.Tag2, f.Revoked = w.readString(2, "tag1"), w.readString(3, "tag2"), w.readBool(4, "isRevoked")
	}
	if err := w.failed(); err != nil {
		return StoredFeedback{}, fmt.Errorf("decoding the answer of readFeedback: %w", err)
	}
	return f, nil
}

// IsNonexistentToken says whether revert data is ERC721NonexistentToken(uint256) of ERC-6093, which is how a registry
// says that there is no such agent.
func IsNonexistentToken(revert []byte) bool {
	return len(revert) == 4+wordSize && [4]byte(revert) == [4]byte{0x7e, 0x27, 0x32, 0x89}
}

func packUint64(v uint64) [wordSize]byte {
	var word [wordSize]byte
	binary.BigEndian.PutUint64(word[wordSize-8:], v)
	return word
}

func packAddress(a common.Address) [wordSize]byte { return common.BytesToHash(a[:]) }

// packCall encodes a call whose first parameter is an agent id. An id that is no uint256 is refused.
func packCall(selector [4]byte, id *big.Int, rest ...[wordSize]byte) ([]byte, error) {
	if id == nil || id.Sign() < 0 || id.BitLen() > 256 {
		return nil, fmt.Errorf("agent id: %w", errRange)
	}
	out := make([]byte, 4+wordSize, 4+wordSize*(1+len(rest)))
	copy(out, selector[:])
	id.FillBytes(out[4:])
	for _, word := range rest {
		out = append(out, word[:]...)
	}
	return out, nil
}

func unpackAddress(ret []byte, name string) (common.Address, error) {
	w := newABIWords(ret)
	a := w.readAddress(0, name)
	return a, w.failed()
}

func unpackUint64(ret []byte, name string) (uint64, error) {
	w := newABIWords(ret)
	v := w.readUint64(0, name)
	return v, w.failed()
}
