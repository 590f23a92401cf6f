package transport

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

const (
	maxEventName = 64       // bytes of an event's name that are kept; the names with a meaning are short
	holdStep     = 16 << 10 // minimum growth, in bytes, between two calls of hold
)

// event is one server-sent event. id and retry are not parsed: HTTP+SSE cannot be resumed, and for streamable HTTP
// mcp-go resumes streams itself.
type event struct {
	name string // "" if the event has none, which means "message"
	data []byte
	size int64 // bytes of the event on the wire, including comments
}

// eventReader reads an event stream from an untrusted party, for both transports that use one. Lines end with LF or
// CRLF. The format also allows a lone CR as line end, but the reader treats it as text, because JSON contains none.
type eventReader struct {
	in       *bufio.Reader
	begun    bool  // nextBlock was called
	limit    int64 // bytes of one event, including comments
	maxLines int   // of one event; 0: bounded only by limit
	// spend is called for every piece that arrives. An error from it ends the stream. It may be nil.
	spend func(n int64) error
	// hold is called with the change in the bytes that an incomplete event keeps in memory. It may be nil.
	hold func(bytes int64)
	held int64 // sum of the values passed to hold
}

func newEventReader(in io.Reader, limit int64) *eventReader {
	return &eventReader{in: bufio.NewReaderSize(in, 4096), limit: limit}
}

// nextEvent returns the next event that has data. It drops an event that the end of the stream cuts off.
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

// nextBlock returns the bytes of the stream up to and including the next empty line. With an error it returns the bytes
// read before it.
func (r *eventReader) nextBlock() (block []byte, err error) {
	if !r.begun { // the format allows a byte order mark
		r.begun = true
		skipMark(r.in)
	}
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

// appendLine appends the next line, including its line end, to block.
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

// countHeld reports to hold the memory of the incomplete event: its bytes are in a buffer of up to twice their size.
func (r *eventReader) countHeld(size int64) {
	more := 2*size - r.held
	if r.hold != nil && (more >= holdStep || size == 0 && more < 0) {
		r.held += more
		r.hold(more)
	}
}

// parseEvent parses one block. It returns false if the event has no data.
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
