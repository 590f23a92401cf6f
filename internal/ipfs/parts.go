package ipfs

import (
	"github.com/ipfs/go-cid"
	"google.golang.org/protobuf/encoding/protowire"

	blocks "github.com/ipfs/go-block-format"
)

// maxLinks bounds the links that are decoded for one document, and so the links of one block. A link of 8 bytes takes
// some 250 bytes of memory. The largest document has eight links, and a directory that is not sharded has some
// thousands.
const maxLinks = 10_000

// countLinks counts the objects that a block's decoder allocates: the links of dag-pb, and the sizes of their targets
// in UnixFS. The decoder rejects a block that is malformed; the fields before the fault are counted.
func countLinks(b blocks.Block) int {
	if b.Cid().Type() != cid.DagProtobuf {
		return 0
	}
	links, sizes := 0, 0
	eachField(b.RawData(), func(number protowire.Number, value []byte) {
		switch number {
		case 1: // Data, which UnixFS defines
			eachField(value, func(number protowire.Number, value []byte) {
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

// eachField calls f for every field of a protobuf message, up to the first malformed one.
func eachField(message []byte, f func(number protowire.Number, value []byte)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		size := protowire.ConsumeFieldValue(number, kind, message)
		if size < 0 {
			return
		}
		value := message[:size]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		f(number, value)
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
