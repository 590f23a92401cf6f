package ipfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/ipfs/boxo/ipld/merkledag"
	"github.com/ipfs/boxo/ipld/unixfs"
	uio "github.com/ipfs/boxo/ipld/unixfs/io"
	"github.com/ipfs/go-cid"
	"golang.org/x/sync/errgroup"

	blocks "github.com/ipfs/go-block-format"
	format "github.com/ipfs/go-ipld-format"
)

// Multicodec codes of blocks that are JSON documents (https://github.com/multiformats/multicodec).
const (
	codecJSON    = 0x0200
	codecDagJSON = 0x0129
)

// immutableFile reads the file at ref, below ref's CID, and verifies every byte. from is the gateway that sent the
// root; it is empty if no gateway was needed. The errors are of all kinds in errors.go.
func (f *Fetcher) immutableFile(ctx context.Context, ref *reference,
	limit int64) (content []byte, from string, err error) {
	s := f.newSession(ctx, ref.shown, limit)
	defer s.end()
	defer func() {
		// The decoders below are third-party code and process untrusted bytes.
		if p := recover(); p != nil {
			f.cfg.Logger.Error("decoding ipfs content panicked", "uri", ref.shown, "panic", p)
			content, err = nil, &InvalidError{URI: ref.shown, Why: "its blocks cannot be decoded"}
		}
	}()
	if len(ref.segments) > 0 {
		// One request usually returns all blocks of the path. Missing blocks are requested one by one, so a failure
		// of this request does not matter.
		_ = s.askGateways(s.ctx, func(ctx context.Context, g *gateway) error {
			return g.fetchCAR(ctx, ref.cid, ref.path(), limit, s.allowance[g],
				func(b blocks.Block) { s.storeBlock(g, b) })
		})
	}
	content, err = s.walkPath(ref)
	if err != nil {
		return nil, "", s.explainError(err)
	}
	return content, s.from, nil
}

// walkPath resolves the segments from the root and reads the file there.
func (s *session) walkPath(ref *reference) ([]byte, error) {
	codec := ref.cid.Type()
	if len(ref.segments) == 0 && (codec == cid.Raw || codec == codecJSON || codec == codecDagJSON) {
		s.plain = ref.cid
		b, err := s.readBlock(s.ctx, ref.cid)
		if err != nil {
			return nil, err
		}
		if int64(len(b.RawData())) > s.limit {
			return nil, &TooLargeError{URI: s.shown, Limit: s.limit}
		}
		return b.RawData(), nil
	}
	if codec != cid.Raw && codec != cid.DagProtobuf {
		return nil, &NoDocumentError{URI: s.shown,
			Why: fmt.Sprintf("its CID is of codec 0x%x, which is no file", codec)}
	}
	node, err := s.Get(s.ctx, ref.cid)
	if err != nil {
		return nil, err
	}
	for _, seg := range ref.segments {
		if node, err = s.resolveChild(node, seg); err != nil {
			return nil, err
		}
	}
	if node, ok := node.(*merkledag.ProtoNode); ok {
		if err := s.checkFile(node); err != nil {
			return nil, err
		}
	}
	return s.appendFile(node, nil)
}

// checkFile returns an error if a UnixFS node is not a file, or if its declared size exceeds the limit. The declared
// size is untrusted, so it only serves to reject a file early.
func (s *session) checkFile(node *merkledag.ProtoNode) error {
	head, err := unixfs.FSNodeFromBytes(node.Data())
	if err != nil {
		return err
	}
	switch {
	case head.IsDir():
		return &NoDocumentError{URI: s.shown, Why: "it is a directory"}
	case head.Type() == unixfs.TSymlink:
		return &NoDocumentError{URI: s.shown, Why: "it is a symbolic link"}
	case head.FileSize() > uint64(s.limit):
		return &TooLargeError{URI: s.shown, Limit: s.limit}
	}
	return nil
}

// readAhead is how many parts of a file are requested together.
const readAhead = 10

// appendFile appends the file below node to content. It does not use boxo's reader, which copies all links of a block
// for each link: ten thousand links would take gigabytes.
func (s *session) appendFile(node format.Node, content []byte) ([]byte, error) {
	data, err := unixfs.ReadUnixFSNodeData(node)
	if err != nil {
		return nil, err
	}
	if int64(len(content)+len(data)) > s.limit {
		return nil, &TooLargeError{URI: s.shown, Limit: s.limit}
	}
	content = append(content, data...)
	links := node.Links()
	if s.followed += len(links); s.followed > maxLinks { // a block that occurs again is not visited again
		return nil, s.tooManyLinks()
	}
	for ahead := range slices.Chunk(links, readAhead) {
		parts, err := s.getNodes(ahead)
		if err != nil {
			return nil, err
		}
		for _, part := range parts {
			if content, err = s.appendFile(part, content); err != nil {
				return nil, err
			}
		}
	}
	return content, nil
}

// getNodes returns the nodes of the links, in their order. It fetches the blocks in parallel and decodes them in the
// caller's goroutine, where a panic of the decoders is recovered. It waits for all requests that it started. boxo's
// GetMany is not used, because it leaks a goroutine if its caller stops after all nodes arrived.
func (s *session) getNodes(links []*format.Link) ([]format.Node, error) {
	group, ctx := errgroup.WithContext(s.ctx)
	group.SetLimit(parallelBlocks)
	fetched := make([]blocks.Block, len(links))
	first := make(map[cid.Cid]int, len(links))
	for i, link := range links {
		if _, asked := first[link.Cid]; asked {
			continue
		}
		first[link.Cid] = i
		group.Go(func() (err error) {
			fetched[i], err = s.readBlock(ctx, link.Cid)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	nodes := make([]format.Node, len(links))
	for i, link := range links {
		node, err := decodeNode(fetched[first[link.Cid]])
		if err != nil {
			return nil, err
		}
		nodes[i] = node
	}
	return nodes, nil
}

// Get returns a node. boxo's directories call it.
func (s *session) Get(ctx context.Context, c cid.Cid) (format.Node, error) {
	block, err := s.readBlock(ctx, c)
	if err != nil {
		return nil, err
	}
	return decodeNode(block)
}

// GetMany is part of format.NodeGetter. It returns no nodes, because looking up a single name does not call it.
func (s *session) GetMany(context.Context, []cid.Cid) <-chan *format.NodeOption {
	none := make(chan *format.NodeOption)
	close(none)
	return none
}

// decodeNode decodes a block of one of the two codecs that refuseBlock accepts.
func decodeNode(block blocks.Block) (format.Node, error) {
	if block.Cid().Type() == cid.Raw {
		return merkledag.DecodeRawBlock(block)
	}
	return merkledag.DecodeProtobufBlock(block)
}

// resolveChild looks up one name in a directory: first percent-decoded, then as it was written.
func (s *session) resolveChild(node format.Node, seg segment) (format.Node, error) {
	dir, err := uio.NewDirectoryFromNode(merkledag.NewReadOnlyDagService(s), node)
	if errors.Is(err, uio.ErrNotADir) {
		return nil, &NotFoundError{URI: s.shown, Proven: true}
	}
	if err != nil {
		return nil, err
	}
	next, err := dir.Find(s.ctx, seg.decoded)
	if errors.Is(err, os.ErrNotExist) && seg.literal != seg.decoded {
		next, err = dir.Find(s.ctx, seg.literal)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, &NotFoundError{URI: s.shown, Proven: true}
	}
	return next, err
}

// explainError converts boxo's errors to this package's errors. If the session itself failed, that failure is the
// reason for boxo's error and takes precedence.
func (s *session) explainError(err error) error {
	cause := s.failureCause()
	for _, e := range []error{cause, err} {
		if _, known := errors.AsType[fetchError](e); known {
			return e
		}
	}
	if cause != nil {
		return explainUnavailable(s.shown, "the gateways", s.whole, cause)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return explainUnavailable(s.shown, "the gateways", s.whole, err)
	}
	return &InvalidError{URI: s.shown, Why: "its verified blocks are no file that can be read", Err: err}
}
