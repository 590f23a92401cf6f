package erc8004

import (
	"encoding/binary"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
)

// PackTokenURI encodes a call of tokenURI(uint256), the ERC-721 method that returns the agentURI of ERC-8004.
func PackTokenURI(agentID *big.Int) ([]byte, error) {
	return packCall([4]byte{0xc8, 0x7b, 0x56, 0xdd}, agentID)
}

// UnpackTokenURI decodes the answer of tokenURI. It does not change the string.
func UnpackTokenURI(ret []byte) (string, error) {
	return unpackValue[string](ret, stringType)
}

// PackOwnerOf encodes a call of ownerOf(uint256).
func PackOwnerOf(agentID *big.Int) ([]byte, error) {
	return packCall([4]byte{0x63, 0x52, 0x21, 0x1e}, agentID)
}

// PackGetIdentityRegistry encodes a call of getIdentityRegistry(), a method of reputation and validation registries.
func PackGetIdentityRegistry() []byte { return []byte{0xbc, 0x4d, 0x86, 0x1b} }

// UnpackGetIdentityRegistry decodes the answer of getIdentityRegistry, the address of the identity registry.
func UnpackGetIdentityRegistry(ret []byte) (common.Address, error) {
	return unpackValue[common.Address](ret, addressType)
}

// PackGetLastIndex encodes a call of getLastIndex(uint256,address).
func PackGetLastIndex(agentID *big.Int, client common.Address) ([]byte, error) {
	return packCall([4]byte{0xf2, 0xd8, 0x17, 0x59}, agentID, packAddress(client))
}

// UnpackGetLastIndex decodes the answer of getLastIndex, the index of a client's newest feedback for an agent. It is 0
// if the client gave no feedback.
func UnpackGetLastIndex(ret []byte) (uint64, error) { return unpackValue[uint64](ret, uint64Type) }

// PackReadFeedback encodes a call of readFeedback(uint256,address,uint64). The same encoding works for registries of
// all ABIs; only their answers differ (UnpackReadFeedback).
func PackReadFeedback(agentID *big.Int, client common.Address, feedbackIndex uint64) ([]byte, error) {
	return packCall([4]byte{0x23, 0x2b, 0x08, 0x10}, agentID, packAddress(client), packUint64(feedbackIndex))
}

// StoredFeedback is a feedback as the contract stores it. Its endpoint, URI and hash are only in the event.
type StoredFeedback struct {
	Value         *big.Int
	ValueDecimals uint8
	LegacyScore   bool // Value is a score, 0 to 100, of a registry of 2025
	Tag1, Tag2    string
	Revoked       bool
}

// UnpackReadFeedback decodes the answer of readFeedback in its three forms: (int128,uint8,string,string,bool) of the
// current ABI, (uint8,string,string,bool) of late 2025, and (uint8,bytes32,bytes32,bool) of October 2025. It determines
// the form by the length and the offset of the first string.
func UnpackReadFeedback(ret []byte) (f StoredFeedback, err error) {
	var v []any
	switch {
	case len(ret) == 4*wordSize:
		if v, err = unpackValues(ret, uint8Type, hashType, hashType, boolType); err == nil {
			f = StoredFeedback{Value: big.NewInt(int64(v[0].(uint8))), LegacyScore: true,
				Tag1: formatTag32(v[1].(common.Hash)), Tag2: formatTag32(v[2].(common.Hash)), Revoked: v[3].(bool)}
		}
	case len(ret) > 4*wordSize && [wordSize]byte(ret[wordSize:]) == packUint64(4*wordSize):
		if v, err = unpackValues(ret, uint8Type, stringType, stringType, boolType); err == nil {
			f = StoredFeedback{Value: big.NewInt(int64(v[0].(uint8))), LegacyScore: true,
				Tag1: v[1].(string), Tag2: v[2].(string), Revoked: v[3].(bool)}
		}
	default:
		if v, err = unpackValues(ret, int256Type, uint8Type, stringType, stringType, boolType); err == nil {
			f = StoredFeedback{Value: v[0].(*big.Int), ValueDecimals: v[1].(uint8),
				Tag1: v[2].(string), Tag2: v[3].(string), Revoked: v[4].(bool)}
		}
	}
	if err != nil {
		return StoredFeedback{}, fmt.Errorf("decoding the answer of readFeedback: %w", err)
	}
	return f, nil
}

// IsNonexistentToken reports whether the data of a revert is ERC721NonexistentToken(uint256) of ERC-6093, the error of
// an identity registry for an agent that does not exist.
func IsNonexistentToken(revert []byte) bool {
	return len(revert) == 4+wordSize && [4]byte(revert) == [4]byte{0x7e, 0x27, 0x32, 0x89}
}

func packUint64(v uint64) [wordSize]byte {
	var word [wordSize]byte
	binary.BigEndian.PutUint64(word[wordSize-8:], v)
	return word
}

func packAddress(a common.Address) [wordSize]byte { return common.BytesToHash(a[:]) }

// packCall encodes a call of the method with this selector. Its parameters are id and the words in rest. It returns an
// error if id is not a uint256.
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
