//go:build !chain

package chaintrial

import (
	"testing"

	"github.com/agentherald/herald/internal/heraldtest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }
