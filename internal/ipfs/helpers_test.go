package ipfs_test

import (
	"bytes"
	"compress/gzip"
	"testing"
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
