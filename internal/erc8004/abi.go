package erc8004

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"unicode/utf8"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// MaxData is the largest log data or call result that is decoded, in bytes. What fits into a block today is below 1
// MiB.
const MaxData = 2 << 20

const wordSize = 32

var (
	errShort    = errors.New("the data ends early")
	errRange    = errors.New("the number is out of range")
	errPadding  = errors.New("the word has bits set where its type has none")
	errTooLarge = fmt.Errorf("more than %d bytes", MaxData)
)

// abiWords reads the head of ABI-encoded data. The first failure sticks; later reads return zero values, so that a
// decoder reads everything and looks at err once.
type abiWords struct {
	data []byte
	err  error
	at   string // what failed
}

func newABIWords(data []byte) *abiWords {
	w := &abiWords{data: data}
	if len(data) > MaxData {
		w.setFailure("data", errTooLarge)
	}
	return w
}

func (w *abiWords) setFailure(name string, err error) {
	if w.err == nil {
		w.err, w.at = err, name
	}
}

func (w *abiWords) failed() error {
	if w.err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", w.at, w.err)
}

// readWord returns head word i.
func (w *abiWords) readWord(i int, name string) (out [wordSize]byte) {
	if w.err != nil {
		return out
	}
	if len(w.data) < (i+1)*wordSize {
		w.setFailure(name, errShort)
		return out
	}
	copy(out[:], w.data[i*wordSize:])
	return out
}

func (w *abiWords) readHash(i int, name string) common.Hash { return w.readWord(i, name) }

func (w *abiWords) readUint64(i int, name string) uint64 {
	word := w.readWord(i, name)
	v, err := parseUint64(word)
	if err != nil {
		w.setFailure(name, err)
	}
	return v
}

func (w *abiWords) readUint8(i int, name string) uint8 {
	v := w.readUint64(i, name)
	if v > 255 {
		w.setFailure(name, errRange)
		return 0
	}
	return uint8(v)
}

func (w *abiWords) readBool(i int, name string) bool {
	v := w.readUint64(i, name)
	if v > 1 {
		w.setFailure(name, errRange)
	}
	return v == 1
}

func (w *abiWords) readAddress(i int, name string) common.Address {
	a, err := parseAddressWord(w.readWord(i, name))
	if err != nil {
		w.setFailure(name, err)
	}
	return a
}

func (w *abiWords) readUint256(i int, name string) *big.Int {
	word := w.readWord(i, name)
	return new(big.Int).SetBytes(word[:])
}

// readInt256 reads a two's complement number.
func (w *abiWords) readInt256(i int, name string) *big.Int {
	word := w.readWord(i, name)
	v := new(big.Int).SetBytes(word[:])
	if word[0]&0x80 != 0 {
		v.Sub(v, new(big.Int).Lsh(big.NewInt(1), 256))
	}
	return v
}

// readBytes reads the dynamic value whose offset stands in head word i. Offsets may overlap, as the ABI permits, so the
// values of one head together are at most len(data) times the number of dynamic head words.
func (w *abiWords) readBytes(i int, name string) []byte {
	offset := w.readUint64(i, name)
	if w.err != nil {
		return nil
	}
	size := uint64(len(w.data))
	if offset > size || size-offset < wordSize {
		w.setFailure(name, errShort)
		return nil
	}
	n, err := parseUint64([wordSize]byte(w.data[offset : offset+wordSize]))
	if err != nil {
		w.setFailure(name, err)
		return nil
	}
	if n > size-offset-wordSize {
		w.setFailure(name, errShort)
		return nil
	}
	return w.data[offset+wordSize : offset+wordSize+n]
}

func (w *abiWords) readString(i int, name string) string { return string(w.readBytes(i, name)) }

// readTag32 reads a bytes32 tag of the October 2025 ABI.
func (w *abiWords) readTag32(i int, name string) string { return formatTag32(w.readWord(i, name)) }

// formatTag32 turns a fixed-size tag into text: without its trailing zeros if what remains is text, else the whole word
// in hex.
func formatTag32(word [wordSize]byte) string {
	text := strings.TrimRight(string(word[:]), "\x00")
	if utf8.ValidString(text) && !strings.ContainsRune(text, 0) {
		return text
	}
	return hexutil.Encode(word[:])
}

func parseUint64(word [wordSize]byte) (uint64, error) {
	for _, b := range word[:wordSize-8] {
		if b != 0 {
			return 0, errRange
		}
	}
	return binary.BigEndian.Uint64(word[wordSize-8:]), nil
}

func parseAddressWord(word [wordSize]byte) (common.Address, error) {
	for _, b := range word[:wordSize-common.AddressLength] {
		if b != 0 {
			return common.Address{}, errPadding
		}
	}
	return common.BytesToAddress(word[:]), nil
}
