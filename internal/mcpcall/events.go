package mcpcall

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxEventName bounds the name of an event; those that mean something are short.
const maxEventName = 64

// event is one server-sent event. id and retry are not kept: HTTP+SSE cannot be resumed.
type event struct {
	name string // "" when it has none, which means "message"
	data []byte
	size int64 // bytes that it took, comments included
}

// eventReader reads an event stream whose author is a stranger. Lines end with LF or CRLF; a lone CR, which the format allows too, is
// taken for text, as no JSON has one.
type eventReader struct {
	in    *bufio.Reader
	limit int64               // bytes of one event, comments included
	spend func(n int64) error // asked for every piece that comes; its error ends the stream
	hold  func(bytes int64)   // is told how many bytes more, or less, the event holds that has not ended; nil: nobody is
	held  int64               // what it was told in sum
}

// holdStep is how much an event grows before that is told.
const holdStep = 16 << 10

// count tells what the event holds now: its bytes, in buffers of up to twice their size.
func (r *eventReader) count(size int64) {
	more := 2*size - r.held
	if r.hold != nil && (more >= holdStep || size == 0 && more < 0) {
		r.held += more
		r.hold(more)
	}
}

func newEventReader(in io.Reader, limit int64, spend func(n int64) error) *eventReader {
	return &eventReader{in: bufio.NewReaderSize(in, 4096), limit: limit, spend: spend}
}

// next returns the next event that has data. An event that the stream's end cuts off is none.
func (r *eventReader) next() (event, error) {
	var e event
	var size int64
	some := false // a data line came
	r.count(0)
	for {
		line, n, err := r.line(r.limit - size)
		if err != nil {
			return event{}, err
		}
		if size += n; len(line) == 0 {
			if some {
				e.size = size
				return e, nil
			}
			e, size = event{}, 0
			r.count(0)
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			e.name = string(value[:min(len(value), maxEventName)])
		case "data":
			if some {
				e.data = append(e.data, '\n')
			}
			e.data, some = append(e.data, value...), true
		}
	}
}

// line returns a line without its end, valid until the next read, and how many bytes it took.
func (r *eventReader) line(room int64) (line []byte, n int64, err error) {
	var long []byte // a line that does not fit into the buffer
	for {
		piece, err := r.in.ReadSlice('\n')
		n += int64(len(piece))
		r.count(r.limit - room + n)
		if len(piece) > 0 {
			if err := r.spend(int64(len(piece))); err != nil {
				return nil, n, err
			}
		}
		if n > room {
			return nil, n, &TooLargeError{Limit: r.limit, Unit: "bytes in one event"}
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			long = append(long, piece...)
			continue
		case err != nil:
			return nil, n, err
		case long != nil:
			piece = append(long, piece...)
		}
		return bytes.TrimSuffix(piece[:len(piece)-1], []byte("\r")), n, nil
	}
}
