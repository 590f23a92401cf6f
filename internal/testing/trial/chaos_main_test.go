//go:build chaos || thirdparty

package trial

import (
	"testing"

	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
)

var shared Bench

func TestMain(m *testing.M) { shared.Main(m, devnettest.Leftovers()...) }
