package logging

import (
	"fmt"
	"io"
	"runtime/debug"
)

// RecoverFault recovers a panic. Defer it in the outermost function of a program. It writes a sentence to w, followed
// by the stack for the developer, and sets *exit to code.
func RecoverFault(program string, w io.Writer, exit *int, code int) {
	fault := recover()
	if fault == nil {
		return
	}
	*exit = code
	fmt.Fprintf(w, "%s: stopped by a fault in Herald: %.500s. "+
		"Earlier answers are done; try again, and report this with the lines below.\n%s",
		program, fmt.Sprint(fault), debug.Stack())
}
