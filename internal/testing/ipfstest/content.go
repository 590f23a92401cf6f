package ipfstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ipfs/boxo/blockservice"
	"github.com/ipfs/boxo/blockstore"
	chunk "github.com/ipfs/boxo/chunker"
	"github.com/ipfs/boxo/exchange/offline"
	"github.com/ipfs/boxo/ipld/merkledag"
	"github.com/ipfs/boxo/ipld/unixfs/importer/balanced"
	"github.com/ipfs/boxo/ipld/unixfs/importer/helpers"
	uio "github.com/ipfs/boxo/ipld/unixfs/io"
	"github.com/ipfs/go-cid"
	"github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"
	"github.com/ipld/go-car/v2"
	"github.com/multiformats/go-multihash"

	"github.com/agentherald/herald/scripts/script"

	blocks "github.com/ipfs/go-block-format"
	format "github.com/ipfs/go-ipld-format"
)

// chunkSize is Kubo's default size of a file's leaves, in bytes.
const chunkSize = 256 << 10

// store is an in-memory blockstore with the services on top of it.
type store struct {
	blocks blockstore.Blockstore
	dag    format.DAGService
}

func newStore() store {
	bs := blockstore.NewIdStore(blockstore.NewBlockstore(dssync.MutexWrap(datastore.NewMapDatastore())))
	return store{blocks: bs, dag: merkledag.NewDAGService(blockservice.New(bs, offline.Exchange(bs)))}
}

// AddFile imports a file as Kubo does with --cid-version=1: raw leaves, one block for up to 256 KiB, otherwise a tree
// of blocks.
func (g *Gateway) AddFile(content []byte) cid.Cid { return g.addFile(content, true).Cid() }

// AddFileV0 imports a file as Kubo does by default: a Qm… CID and wrapped leaves.
func (g *Gateway) AddFileV0(content []byte) cid.Cid { return g.addFile(content, false).Cid() }

func (g *Gateway) addFile(content []byte, v1 bool) format.Node {
	params := helpers.DagBuilderParams{
		Dagserv: g.store.dag, Maxlinks: helpers.DefaultLinksPerBlock,
		RawLeaves: v1, CidBuilder: builder(v1),
	}
	return script.Must(balanced.Layout(script.Must(params.New(chunk.NewSizeSplitter(bytes.NewReader(content), chunkSize)))))
}

func builder(v1 bool) cid.Builder {
	if v1 {
		return cid.V1Builder{Codec: cid.DagProtobuf, MhType: multihash.SHA2_256}
	}
	return cid.V0Builder{}
}

// AddDirectory imports files by their paths, for example "a/b.json". It creates the directories.
func (g *Gateway) AddDirectory(files map[string][]byte) cid.Cid {
	return g.addDirectory(files, func() (uio.Directory, error) {
		return uio.NewBasicDirectory(g.store.dag, uio.WithCidBuilder(builder(true)))
	}).Cid()
}

// AddShardedDirectory is AddDirectory with a HAMT for every directory, as Kubo uses for large directories.
func (g *Gateway) AddShardedDirectory(files map[string][]byte) cid.Cid {
	return g.addDirectory(files, func() (uio.Directory, error) {
		return uio.NewHAMTDirectory(g.store.dag, 0, uio.WithCidBuilder(builder(true)))
	}).Cid()
}

func (g *Gateway) addDirectory(files map[string][]byte, create func() (uio.Directory, error)) format.Node {
	dir := script.Must(create())
	below := make(map[string]map[string][]byte)
	for path, content := range files {
		name, rest, deeper := strings.Cut(path, "/")
		if !deeper {
			script.Check(dir.AddChild(context.Background(), name, g.addFile(content, true)))
			continue
		}
		if below[name] == nil {
			below[name] = make(map[string][]byte)
		}
		below[name][rest] = content
	}
	for name, files := range below {
		script.Check(dir.AddChild(context.Background(), name, g.addDirectory(files, create)))
	}
	n := script.Must(dir.GetNode())
	script.Check(g.store.dag.Add(context.Background(), n))
	return n
}

// AddBlock stores one block unchanged, with the given codec and hash function (multicodec codes), and returns its CID.
// It panics if the hash function is unknown.
func (g *Gateway) AddBlock(data []byte, codec, hash uint64) cid.Cid {
	c := script.Must(cid.Prefix{Version: 1, Codec: codec, MhType: hash, MhLength: -1}.Sum(data))
	script.Check(g.store.blocks.Put(context.Background(), script.Must(blocks.NewBlockWithCid(data, c))))
	return c
}

// AddCAR stores the blocks of a CAR (version 1 or 2) and returns the roots in its header. It verifies each block.
func (g *Gateway) AddCAR(r io.Reader) ([]cid.Cid, error) {
	blocks, err := car.NewBlockReader(r)
	if err != nil {
		return nil, fmt.Errorf("reading a CAR: %w", err)
	}
	for {
		b, err := blocks.Next()
		if errors.Is(err, io.EOF) {
			return blocks.Roots, nil
		}
		if err == nil {
			err = g.store.blocks.Put(context.Background(), b)
		}
		if err != nil {
			return nil, fmt.Errorf("storing a CAR's block: %w", err)
		}
	}
}

// Remove deletes one block, as if it had never been pinned.
func (g *Gateway) Remove(c cid.Cid) {
	script.Check(g.store.blocks.DeleteBlock(context.Background(), c))
}
