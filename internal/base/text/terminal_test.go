package text

import "testing"

func TestPrintable(t *testing.T) {
	t.Parallel()
	if got := Printable("a\x1b[2J\u202eb\u0085\r\n"); got != "a·[2J·b···" {
		t.Errorf("%q", got)
	}
}
