package heraldtest

import (
	"errors"
	"fmt"
	"strings"
)

// Contains reports the words that a text lacks. what describes the text:
//
//	heraldtest.Contains(t, "/metrics", body, "herald_overdue_seconds 0", "herald_service_up")
func Contains(t reporter, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s: there is no %q in\n%s", what, w, text)
		}
	}
}

// Lacks reports the words that a text contains, such as secrets.
func Lacks(t reporter, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if strings.Contains(text, w) {
			t.Errorf("%s: %q is in\n%s", what, w, text)
		}
	}
}

// Fails reports that err is nil, or lacks something of want: a text of its message, or an error that it wraps.
func Fails(t reporter, what string, err error, want ...any) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want one with %q", what, want)
		return
	}
	for _, w := range want {
		if target, is := w.(error); is && !errors.Is(err, target) || !is && !strings.Contains(err.Error(), w.(string)) {
			t.Errorf("%s: %v, want %q", what, err, fmt.Sprint(w))
		}
	}
}
