//go:build !chain

package chaintrial

import (
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }
