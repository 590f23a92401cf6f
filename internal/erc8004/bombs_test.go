package erc8004

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

// repeated returns about size bytes of JSON that repeat item. If item contains a verb, it gets the item's number.
func repeated(before, item, after string, size int) []byte {
	var b strings.Builder
	b.Grow(size + 1<<10)
	b.WriteString(before)
	for i := 0; b.Len() < size-1<<10; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		if strings.Contains(item, "%") {
			fmt.Fprintf(&b, item, i)
		} else {
			b.WriteString(item)
		}
	}
	b.WriteString(after)
	return []byte(b.String())
}

// allocatedBy returns the number of bytes that f allocates. It measures the whole process, so tests that call it are
// not parallel.
func allocatedBy(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// TestFileIsNotDecodedBeyondItsBounds verifies files of the allowed size with a wrong hash. Decoding them completely
// would allocate about 200 MB and take three seconds.
func TestFileIsNotDecodedBeyondItsBounds(t *testing.T) {
	for name, file := range map[string][]byte{
		"zeros":          repeated("[", "0", "]", 2<<20),
		"objects":        repeated("[", "{}", "]", 2<<20),
		"members":        repeated("{", `"%d":0`, "}", 2<<20),
		"nested members": repeated(`{"a":[`, `{"a":{"b":[0]}}`, "]}", 2<<20),
		"strings":        repeated("[", `""`, "]", 2<<20),
		"depth":          []byte(strings.Repeat(`{"a":`, 300_000) + "0" + strings.Repeat("}", 300_000)),
	} {
		t.Run(name, func(t *testing.T) {
			var got Verdict
			if n := allocatedBy(func() { got = VerifyHash(file, common.Hash{1}, true) }); n > 1<<20 {
				t.Errorf("comparing its hash allocates %d KiB", n>>10)
			}
			heraldtest.Equal(t, "the verdict is", got, Mismatch)
			if n := allocatedBy(func() { CrossCheck(file, FeedbackFacts{}) }); n > 1<<20 {
				t.Errorf("comparing it with its event allocates %d KiB", n>>10)
			}
			// The bytes themselves are still compared.
			heraldtest.Equal(t, "without a hash", VerifyHash(file, common.Hash{}, true), NotGiven)
		})
	}
}

// TestLargestFile: a file within the bounds costs at most as much memory as the bounds are chosen for.
func TestLargestFile(t *testing.T) {
	for name, file := range map[string][]byte{
		"members of long names": repeated("{", `"`+strings.Repeat("n", 30)+`%09d":0`, "}", 2<<20-1<<18),
		"a few longer names":    repeated("{", `"`+strings.Repeat("n", 2000)+`%09d":0`, "}", 2<<20),
		"objects":               repeated("[", `{"`+strings.Repeat("n", 90)+`%d":[]}`, "]", 2<<20-1<<19),
		"long numbers":          repeated("[", strings.Repeat("9", 25)+"e%d", "]", 2<<20),
	} {
		t.Run(name, func(t *testing.T) {
			var got Verdict
			n := allocatedBy(func() { got = VerifyHash(file, common.Hash{1}, true) })
			if got != Mismatch || n > 128<<20 {
				t.Errorf("%s, and %d MiB were allocated in sum", got, n>>20)
			}
			t.Logf("%d KiB for %d KiB", n>>10, len(file)>>10)
		})
	}
}

// TestRegistrationIsNotDecodedBeyondItsBounds is the same check for registration documents.
func TestRegistrationIsNotDecodedBeyondItsBounds(t *testing.T) {
	for name, doc := range map[string][]byte{
		"members":       repeated("{", `"%d":0`, "}", MaxRegistrationBytes),
		"services":      repeated(`{"services":[`, "{}", "]}", MaxRegistrationBytes),
		"registrations": repeated(`{"registrations":[`, "0", "]}", MaxRegistrationBytes),
		"depth":         []byte(`{"services":` + strings.Repeat("[", 400_000)),
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			n := allocatedBy(func() { _, err = ParseRegistration(doc) })
			if refused, ok := errors.AsType[*DocumentError](err); !ok || refused.Problem != ProblemTooComplex {
				t.Errorf("it is read: %v", err)
			}
			if n > 1<<20 {
				t.Errorf("refusing it allocates %d KiB", n>>10)
			}
		})
	}
}
