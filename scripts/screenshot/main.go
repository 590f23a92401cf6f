//go:build unix

// Command screenshot takes the pictures for the documentation: the overview, and the web UI with the demo's third
// delivery, which waits for its second retry. It runs the demo and a browser, and stops both.
//
//	screenshot -demo bin/demo -o docs
//
// The browser is $CHROMIUM, or one on the PATH. On Debian, as root, it is installed if none of these exists.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/agentherald/herald/internal/testing/trial"
)

const (
	// runTimeout bounds everything except the installation of a browser.
	runTimeout = 3 * time.Minute
	// stopTimeout bounds the demo's shutdown, in which its worker finishes running calls.
	stopTimeout = 90 * time.Second
	// longWait distinguishes the second wait (Retry-After: 15) from the first one (about a second).
	longWait = 8 * time.Second
)

// page is the path of the page in the picture, relative to the web UI's address.
const page = "queues/retry?status=retry"

// Patterns of lines that the demo prints.
var (
	webUILine   = regexp.MustCompile(`http://127\.0\.0\.1:\d+/monitor/`)
	waitingLine = regexp.MustCompile(`waiting (?:rate_limited|server_error), again in ([0-9.]+m?s)`)
)

func main() {
	demo := flag.String("demo", "bin/demo", "the demo's `program`")
	folder := flag.String("o", "docs", "the `folder` to write web-ui.png and overview.png to")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *demo, *folder); err != nil {
		fmt.Fprintln(os.Stderr, "screenshot:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program, folder string) (err error) {
	browser, err := findBrowser(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "herald-screenshot-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	fmt.Println("running the demo until its third delivery waits, half a minute")
	demo, err := trial.Foreign{Name: "demo", Path: program, Args: []string{"--listen", "127.0.0.1:0"},
		Env: os.Environ(), Log: filepath.Join(scratch, "demo.log")}.Start()
	if err != nil {
		return fmt.Errorf("make build makes the demo: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		err = errors.Join(err, demo.Terminate(ctx))
	}()
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	webUI, err := awaitRetry(ctx, demo)
	if err != nil {
		return err
	}
	ctx, closeBrowser := openBrowser(ctx, browser)
	defer closeBrowser()
	// The page has a table only while a delivery waits.
	if err := takePicture(ctx, webUI+page, "tbody tr", filepath.Join(folder, "web-ui.png")); err != nil {
		return err
	}
	return takePicture(ctx, strings.TrimSuffix(webUI, "monitor/"), "tbody tr", filepath.Join(folder, "overview.png"))
}

// awaitRetry waits until a delivery of the demo waits long enough for a picture, and returns the web UI's address.
func awaitRetry(ctx context.Context, demo *trial.Process) (webUI string, err error) {
	err = demo.Await(ctx, 50*time.Millisecond, "a delivery to wait for its second retry", func() (bool, error) {
		for line, err := range demo.Lines() {
			if err != nil {
				return false, err
			}
			if found := webUILine.FindString(line.Message); found != "" && webUI == "" {
				webUI = found
			}
			if m := waitingLine.FindStringSubmatch(line.Message); m != nil && webUI != "" {
				if wait, err := time.ParseDuration(m[1]); err == nil && wait >= longWait {
					return true, nil
				}
			}
		}
		return false, nil
	})
	return webUI, err
}
