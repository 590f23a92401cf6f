package ipfs_test

import (
	"bytes"
	"compress/gzip"
	"testing"
	"time"
)

func gzipped(t testing.TB, b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	if err2 := w.Close(); err != nil || err2 != nil {
		t.Error(err, err2)
	}
	return out.Bytes()
}

// waitFor polls until ok says so.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("what was waited for did not happen")
		}
	}
}
