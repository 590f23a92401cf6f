package ipfs

import (
	"errors"
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/agentherald/herald/internal/base/netguard"
)

// TestOpenFilesForGateways: that this process has too many open files says nothing about the content. The caller finds
// it in the error, also if other gateways lack the content.
func TestOpenFilesForGateways(t *testing.T) {
	t.Parallel()
	v, g := &verdicts{shown: "ipfs://cid"}, &gateway{base: &url.URL{Host: "gateway.example"}}
	v.add(g, errAbsent)
	v.add(g, netguard.Explain("it", 0, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}))
	v.add(g, &statusError{status: 502})
	if err := v.err(); !errors.Is(err, syscall.EMFILE) {
		t.Error(err)
	}
}
