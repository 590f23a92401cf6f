package heraldtest

import "testing"

// Address returns a loopback address ("127.0.0.1:port") at which nobody listens and that stays the test's own until it
// ends. The test, or a program that it starts, may listen there, stop, and listen again; connections are refused
// meanwhile.
//
// A port that was found free and let go is soon given to somebody else on a busy machine, most often as the near end of
// an outgoing connection. On Linux this one stays bound; elsewhere it is only found.
func Address(t testing.TB) string {
	t.Helper()
	address, release, err := reserve()
	if err != nil {
		t.Fatalf("heraldtest: reserve an address: %v", err)
	}
	t.Cleanup(release)
	return address
}
