package heraldtest

import "testing"

// Address returns a loopback address ("127.0.0.1:port") that is reserved for the test until it ends. The test, or a
// program that it starts, may listen there, stop, and listen again. While no listener exists, connections are
// refused.
//
// A port that is only known to be free is soon used by another process on a busy machine, most often for an outgoing
// connection. On Linux the port stays bound; on other systems it is only known to be free.
func Address(t testing.TB) string {
	t.Helper()
	return reserve(t)
}
