package job

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestLineReader(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200_000)
	for name, c := range map[string]struct {
		in   string
		want []string // "!": a refusal
	}{
		"empty":            {"", nil},
		"one":              {"a\n", []string{"a"}},
		"no newline":       {"a\nb", []string{"a", "b"}},
		"blank lines":      {"\n\na\n", []string{"", "", "a"}},
		"carriage return":  {"a\r\nb\r\n", []string{"a\r", "b\r"}},
		"exactly":          {strings.Repeat("y", 100) + "\nb\n", []string{strings.Repeat("y", 100), "b"}},
		"exactly, at end":  {strings.Repeat("y", 100), []string{strings.Repeat("y", 100)}},
		"one more":         {strings.Repeat("y", 101) + "\nb\n", []string{"!", "b"}},
		"long, then on":    {"a\n" + long + "\nb\n", []string{"a", "!", "b"}},
		"long at the end":  {"a\n" + long, []string{"a", "!"}},
		"long, then blank": {long + "\n\n" + long + "\n", []string{"!", "", "!"}},
	} {
		for reader, in := range map[string]io.Reader{"whole": strings.NewReader(c.in), "bytewise": iotest.OneByteReader(strings.NewReader(c.in)), "with EOF": iotest.DataErrReader(strings.NewReader(c.in))} {
			r := NewLineReader(in, 100)
			var got []string
			for {
				line, err := r.Next()
				if _, ok := errors.AsType[*Refusal](err); ok {
					got = append(got, "!")
					continue
				}
				if err != nil {
					heraldtest.Fails(t, fmt.Sprintf("%s, %s", name, reader), err, io.EOF)
					break
				}
				got = append(got, string(line))
			}
			if strings.Join(got, "|") != strings.Join(c.want, "|") || len(got) != len(c.want) || r.Offset() != int64(len(c.in)) {
				t.Errorf("%s, %s: got %q at %d", name, reader, got, r.Offset())
			}
		}
	}
}

func TestLineReaderFails(t *testing.T) {
	t.Parallel()
	r := NewLineReader(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("abc\n"))), 100)
	_, err := r.Next()
	heraldtest.Fails(t, "the error", err, iotest.ErrTimeout)
	// The caller owns a returned line, so the next call does not change it.
	r = NewLineReader(strings.NewReader("first\nother\n"), 100)
	first, _ := r.Next()
	_, _ = r.Next()
	heraldtest.Equal(t, "the first line", string(first), "first")
}

// zeros is a reader of left zero bytes, which form one line.
type zeros struct{ left int }

func (z *zeros) Read(b []byte) (int, error) {
	n := min(len(b), z.left)
	if n == 0 {
		return 0, io.EOF
	}
	clear(b[:n])
	z.left -= n
	return n, nil
}

func TestLineReaderMemory(t *testing.T) {
	const size = 256 << 20
	r := NewLineReader(io.MultiReader(&zeros{size}, strings.NewReader("\nb\n")), MaxBytes)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := r.Next()
	runtime.ReadMemStats(&after)
	if refusal, ok := errors.AsType[*Refusal](err); !ok || !strings.Contains(refusal.Problem, "268435456 bytes") {
		t.Errorf("got %v", err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 {
		t.Errorf("%d bytes for a line that is skipped", got)
	}
	if line, err := r.Next(); err != nil || string(line) != "b" {
		t.Errorf("got %q, %v", line, err)
	}
}

func FuzzLineReader(f *testing.F) {
	f.Add([]byte("a\nbb\n\nccc"), 2)
	f.Fuzz(func(t *testing.T, in []byte, limit int) {
		limit = 1 + (limit%512+512)%512
		r := NewLineReader(bytes.NewReader(in), limit)
		want := bufio.NewScanner(bytes.NewReader(in))
		want.Buffer(nil, len(in)+bufio.MaxScanTokenSize)
		want.Split(func(data []byte, atEOF bool) (int, []byte, error) {
			if i := bytes.IndexByte(data, '\n'); i >= 0 {
				return i + 1, data[:i], nil
			}
			if atEOF && len(data) > 0 {
				return len(data), data, nil
			}
			return 0, nil, nil
		})
		for want.Scan() {
			line, err := r.Next()
			if long := len(want.Bytes()) > limit; long != (err != nil) || !long && !bytes.Equal(line, want.Bytes()) {
				t.Fatalf("got %q, %v, want %q", line, err, want.Bytes())
			}
		}
		_, err := r.Next()
		heraldtest.Fails(t, "the error", err, io.EOF)
	})
}
