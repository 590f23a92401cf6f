//go:build linux && !chain

package main

import (
	"context"
	"errors"
)

func measureEvents(context.Context) error {
	return errors.New("bench chain needs the build tag chain: run make bench-chain")
}
