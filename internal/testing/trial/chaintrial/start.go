//go:build chain

package chaintrial

import "context"

// StartAnvil starts an anvil for benchmarks. It writes the log to a file in folder. end stops it.
func StartAnvil(ctx context.Context, folder string) (node Node, end func() error, err error) {
	n, err := startAnvil(ctx, folder)
	if err != nil {
		return nil, nil, err
	}
	return n, n.process.End, nil
}
