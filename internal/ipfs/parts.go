package ipfs

import (
	"encoding/binary"

	"github.com/ipfs/go-cid"

	blocks "github.com/ipfs/go-block-format"
)

// maxLinks bounds the links that are decoded for one document, and so those of one block. A link of 8 bytes becomes
// some 250 bytes of memory. The largest document has eight, a directory that is not sharded some thousands.
const maxLinks = 10_000

// countLinks counts what a block's decoder makes objects of: the links of dag-pb, and the sizes of their targets that
// UnixFS lists. The decoder refuses what cannot be read to its end; what comes before that is counted.
func countLinks(b blocks.Block) int {
	if b.Cid().Type() != cid.DagProtobuf {
		return 0
	}
	links, sizes := 0, 0
	eachField(b.RawData(), func(number uint64, value []byte) {
		switch number {
		case 1: // Data, which UnixFS defines
			eachField(value, func(number uint64, value []byte) {
				if number == 4 { // blocksizes: one, or several packed
					sizes += countVarints(value)
				}
			})
		case 2: // Links
			links++
		}
	})
	return max(links, sizes)
}

// eachField calls f for every field of a protobuf message, as far as it can be read. Groups, which nobody writes any
// more, are looked into.
func eachField(message []byte, f func(number uint64, value []byte)) {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return
		}
		message = message[n:]
		size := 0
		switch tag & 7 {
		case 0:
			if _, size = binary.Uvarint(message); size <= 0 {
				return
			}
		case 1:
			size = 8
		case 2:
			length, n := binary.Uvarint(message)
			if n <= 0 || length > uint64(len(message)-n) {
				return
			}
			message, size = message[n:], int(length)
		case 3, 4:
			continue
		case 5:
			size = 4
		default:
			return
		}
		if size > len(message) {
			return
		}
		f(tag>>3, message[:size])
		message = message[size:]
	}
}

func countVarints(b []byte) int {
	n := 0
	for _, c := range b {
		if c < 0x80 {
			n++
		}
	}
	return n
}
