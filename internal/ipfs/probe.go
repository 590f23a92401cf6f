package ipfs

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
)

// emptyBlock is the CID of no bytes. It holds its content in itself, so that every trustless gateway can answer for it
// without looking anywhere; the gateways' specification has it for probes.
const emptyBlock = "bafkqaaa"

// Probed is what a gateway answered.
type Probed struct {
	Gateway string // without path
	Err     error  // nil: it answers
}

// Probe asks all gateways at the same time whether they answer, each for as long as one question may take.
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
	if errors.Is(err, errAbsent) { // a gateway has it always
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
