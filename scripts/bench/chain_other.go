//go:build linux && !chain

package main

import (
	"context"

	"github.com/agentherald/herald/scripts/script"
)

func measureEvents(context.Context) {
	script.Fail("bench chain needs the build tag chain: run make bench-chain")
}
