package erc8004

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
)

// MaxData is the largest log data or call result, in bytes, that is decoded. All data that fits into a block today is
// smaller.
const MaxData = 2 << 20

// wordSize is the length, in bytes, of a word of the ABI.
const wordSize = 32

var (
	errRange    = errors.New("the number is out of range")
	errPadding  = errors.New("an address has bits set where its type has none")
	errTooLarge = fmt.Errorf("more than %d bytes", MaxData)
)

// The ABI types that unpackValues is called with. A bytes32 is decoded as a common.Hash.
var (
	boolType    = abi.Type{T: abi.BoolTy}
	uint8Type   = abi.Type{T: abi.UintTy, Size: 8}
	uint64Type  = abi.Type{T: abi.UintTy, Size: 64}
	uint256Type = abi.Type{T: abi.UintTy, Size: 256}
	int256Type  = abi.Type{T: abi.IntTy, Size: 256}
	addressType = abi.Type{T: abi.AddressTy, Size: common.AddressLength}
	hashType    = abi.Type{T: abi.HashTy, Size: common.HashLength}
	stringType  = abi.Type{T: abi.StringTy}
	bytesType   = abi.Type{T: abi.BytesTy}
)

// unpackValues decodes ABI-encoded values of the given types, none of which may be an array. It returns an error if
// data is larger than MaxData, or if a value is out of the range of its type. The decoded values may be larger than
// data, because the ABI permits that several strings occupy the same bytes: at most len(data) times the number of
// strings in of.
func unpackValues(data []byte, of ...abi.Type) ([]any, error) {
	if len(data) > MaxData {
		return nil, errTooLarge
	}
	arguments := make(abi.Arguments, len(of))
	for i, t := range of {
		arguments[i].Type = t
	}
	values, err := arguments.UnpackValues(data)
	if err != nil {
		return nil, err
	}
	for i, t := range of { // go-ethereum ignores the bytes before an address
		if t.T == abi.AddressTy &&
			[wordSize - common.AddressLength]byte(data[i*wordSize:]) != [wordSize - common.AddressLength]byte{} {
			return nil, errPadding
		}
	}
	return values, nil
}

// unpackValue decodes data that contains one value. T is the Go type of the ABI type of.
func unpackValue[T any](data []byte, of abi.Type) (value T, err error) {
	values, err := unpackValues(data, of)
	if err != nil {
		return value, err
	}
	return values[0].(T), nil
}

// formatTag32 converts a bytes32, the type of tags in the ABI of October 2025, to text. It removes trailing zero bytes.
// If the rest contains a zero byte or invalid UTF-8, it returns the 32 bytes in hex.
func formatTag32(word common.Hash) string {
	text := strings.TrimRight(string(word[:]), "\x00")
	if utf8.ValidString(text) && !strings.ContainsRune(text, 0) {
		return text
	}
	return word.Hex()
}
