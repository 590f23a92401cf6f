package transport

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

const (
	maxEventName = 64       // bytes of the name of an event; those that mean something are short
	holdStep     = 16 << 10 // hold is called for every so many bytes
)

// event is one server-sent event. id and retry are not read: HTTP+SSE cannot be resumed, and over streamable HTTP
// mcp-go does it.
type event struct {
	name string // "" when it has none, which means "message"
	data []byte
	size int64 // bytes that it took, comments included
}

// eventReader reads an event stream whose author is a stranger, for both transports that have one. Lines end with LF or
// CRLF; a lone CR, which the format allows too, is taken for text, as no JSON has one.
type eventReader struct {
	in       *bufio.Reader
	limit    int64               // bytes of one event, comments included
	maxLines int                 // of one event; 0: as many as fit
	spend    func(n int64) error // called for every piece that comes; its error ends the stream. May be nil
	hold     func(bytes int64)   // called with the bytes that an unfinished event gained or gave back. May be nil
	held     int64               // sum of what was passed to hold
}

func newEventReader(in io.Reader, limit int64) *eventReader {
	return &eventReader{in: bufio.NewReaderSize(in, 4096), limit: limit}
}

// nextEvent returns the next event that has data. An event that the stream's end cuts off is none.
func (r *eventReader) nextEvent() (event, error) {
	for {
		block, err := r.nextBlock()
		if err != nil {
			return event{}, err
		}
		if e, ok := parseEvent(block); ok {
			return e, nil
		}
	}
}

// nextBlock returns the stream's bytes up to and including the next empty line. An error comes with the bytes before
// it.
func (r *eventReader) nextBlock() (block []byte, err error) {
	r.countHeld(0)
	for lines := 0; ; lines++ {
		start := len(block)
		if block, err = r.appendLine(block); err != nil {
			return block, err
		}
		if len(bytes.TrimRight(block[start:], "\r\n")) == 0 {
			return block, nil
		}
		if r.maxLines > 0 && lines >= r.maxLines {
			return nil, &TooLargeError{Limit: int64(r.maxLines), Unit: "lines in one event"}
		}
	}
}

// appendLine appends the next line to block, its end included.
func (r *eventReader) appendLine(block []byte) ([]byte, error) {
	for {
		piece, err := r.in.ReadSlice('\n')
		block = append(block, piece...)
		r.countHeld(int64(len(block)))
		if r.spend != nil && len(piece) > 0 {
			if err := r.spend(int64(len(piece))); err != nil {
				return block, err
			}
		}
		if int64(len(block)) > r.limit {
			return nil, &TooLargeError{Limit: r.limit, Unit: "bytes in one event"}
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return block, err
		}
	}
}

// countHeld reports what the unfinished event holds now: its bytes, in a buffer of up to twice their size.
func (r *eventReader) countHeld(size int64) {
	more := 2*size - r.held
	if r.hold != nil && (more >= holdStep || size == 0 && more < 0) {
		r.held += more
		r.hold(more)
	}
}

// parseEvent reads one block; false when it has no data.
func parseEvent(block []byte) (e event, hasData bool) {
	e.size = int64(len(block))
	for line := range bytes.Lines(block) {
		field, value, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			e.name = string(value[:min(len(value), maxEventName)])
		case "data":
			if hasData {
				e.data = append(e.data, '\n')
			}
			e.data, hasData = append(e.data, value...), true
		}
	}
	return e, hasData
}
