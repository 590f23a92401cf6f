package logging

import (
	"fmt"
	"io"
	"runtime/debug"
)

// RecoverFault is deferred by a program's outermost function: a panic becomes a sentence on w and the exit code code.
// The stack stands below the sentence, for who mends it.
func RecoverFault(program string, w io.Writer, exit *int, code int) {
	fault := recover()
	if fault == nil {
		return
	}
	*exit = code
	fmt.Fprintf(w, "%s: stopped by a fault in Herald: %.500s. What was answered until here is done; try again, and report this with the lines below.\n%s",
		program, fmt.Sprint(fault), debug.Stack())
}
