package job

import (
	"bufio"
	"errors"
	"io"
)

// LineReader reads JSON Lines. It skips a line that is longer than the limit, without keeping it in memory, and
// continues with the next line.
type LineReader struct {
	r      *bufio.Reader
	limit  int
	offset int64
}

// NewLineReader returns a LineReader that accepts lines of at most limit bytes, without the newline.
func NewLineReader(r io.Reader, limit int) *LineReader {
	return &LineReader{r: bufio.NewReaderSize(r, 64<<10), limit: limit}
}

// Offset returns the number of input bytes up to the end of the last line that Next read.
func (l *LineReader) Offset() int64 { return l.offset }

// Next returns the next line without its newline, or io.EOF after the last line. A last line may lack its newline. For
// a line that is too long, Next returns a *Refusal, and the next call continues after that line. The caller may keep
// the slice.
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
