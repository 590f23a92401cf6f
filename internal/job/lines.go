package job

import (
	"bufio"
	"errors"
	"io"
)

// LineReader reads JSON Lines. A line beyond the limit is skipped without being kept, and the rest of the input goes
// on.
type LineReader struct {
	r      *bufio.Reader
	limit  int
	offset int64
}

// NewLineReader bounds each line to limit bytes, its newline not counted.
func NewLineReader(r io.Reader, limit int) *LineReader {
	return &LineReader{r: bufio.NewReaderSize(r, 64<<10), limit: limit}
}

// Offset is how many bytes of the input were read.
func (l *LineReader) Offset() int64 { return l.offset }

// Next returns the next line without its newline, valid for as long as the caller likes. *Refusal: the line was too
// long and is skipped. io.EOF: the end; a last line without newline is returned before it.
func (l *LineReader) Next() ([]byte, error) {
	var line []byte
	var length int64
	for {
		part, err := l.r.ReadSlice('\n')
		l.offset += int64(len(part))
		length += int64(len(part))
		if len(part) > 0 && part[len(part)-1] == '\n' {
			length--
			part = part[:len(part)-1]
		}
		if length <= int64(l.limit) {
			line = append(line, part...)
		} else {
			line = nil
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			if length == 0 {
				return nil, io.EOF
			}
		case err != nil:
			return nil, err
		}
		if length > int64(l.limit) {
			return nil, refuseLength(length, l.limit)
		}
		if line == nil {
			line = []byte{}
		}
		return line, nil
	}
}
