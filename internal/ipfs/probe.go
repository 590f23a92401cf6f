package ipfs

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
)

// emptyBlock is the CID of the empty block. The CID contains the content, so every trustless gateway can serve it
// without a lookup. The gateways' specification recommends it for probes.
const emptyBlock = "bafkqaaa"

// Probed is the result of probing one gateway.
type Probed struct {
	Gateway string // scheme and host, without path
	Err     error  // nil if the gateway answers
}

// Probe checks all gateways concurrently. Each gateway has the time of one request.
func (f *Fetcher) Probe(ctx context.Context) []Probed {
	out := make([]Probed, len(f.gateways))
	var wg sync.WaitGroup
	for i, g := range f.gateways {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, g.try)
			defer cancel()
			out[i] = Probed{g.base.Scheme + "://" + g.base.Host, g.probe(ctx)}
		})
	}
	wg.Wait()
	return out
}

func (g *gateway) probe(ctx context.Context) error {
	resp, err := g.sendRequest(ctx, "ipfs", emptyBlock, "raw", "", "application/vnd.ipld.raw")
	if errors.Is(err, errAbsent) { // every gateway has this block
		return &statusError{status: http.StatusNotFound}
	}
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if n, _ := io.ReadFull(resp.Body, make([]byte, 1)); n > 0 {
		return errors.New("it sent something else than an empty block: it may be no IPFS gateway")
	}
	return nil
}
