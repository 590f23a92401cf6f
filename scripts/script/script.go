// Package script runs the programs of this folder, which end at the first error: Check and Must panic with it, Run prints it.
package script

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// failure is the value of a panic for an error.
type failure struct{ error }

// Run calls do with a context that ends at an interrupt, and then ends the process. An error of do is printed after the name.
func Run(name string, do func(ctx context.Context)) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := Try(func() { do(ctx) })
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// Try calls do and returns the error that ended it. A goroutine whose functions use Check needs a Try of its own.
func Try(do func()) (err error) {
	defer func() { err = errorOf(recover()) }()
	do()
	return nil
}

// Close is for defer: it calls end, and adds its error to the one that is ending the function.
func Close(end func() error) {
	panicked := recover()
	Check(errors.Join(end(), errorOf(panicked)))
}

// Within returns end for Close, with a context that outlives ctx by limit at most.
func Within(ctx context.Context, limit time.Duration, end func(context.Context) error) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		return end(ctx)
	}
}

// Sleep waits for d. It ends the script if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
		Check(context.Cause(ctx))
	}
}

// Check ends the script if err is not nil.
func Check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Fail ends the script with an error.
func Fail(format string, args ...any) { Check(fmt.Errorf(format, args...)) }

// Must returns v, or ends the script if err is not nil.
func Must[T any](v T, err error) T {
	Check(err)
	return v
}

// errorOf returns the error of a recovered panic of Check. It repeats every other panic.
func errorOf(panicked any) error {
	switch v := panicked.(type) {
	case nil:
		return nil
	case failure:
		return v.error
	}
	panic(panicked)
}
