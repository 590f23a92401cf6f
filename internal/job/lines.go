package job

import (
	"bufio"
	"errors"
	"io"
)

// LineReader reads JSON Lines. It skips a line that is longer than its limit, without storing it in memory.
type LineReader struct {
	r      *bufio.Reader
	limit  int
	offset int64
}

// NewLineReader returns a LineReader for lines of at most limit bytes, not counting the newline.
func NewLineReader(r io.Reader, limit int) *LineReader {
	return &LineReader{r: bufio.NewReaderSize(r, 64<<10), limit: limit}
}

// Offset returns the number of bytes of the input before the line that the following call of Next reads. Lines that
// were too long, and newlines, are included.
func (l *LineReader) Offset() int64 { return l.offset }

// Next returns the next line without its newline, or io.EOF after the last line, which may lack a newline. If the line
// is too long, Next returns a *Refusal, and the next call returns the line after it. The caller may keep the returned
// slice.
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
