//go:build unix

// Command screenshot takes the pictures for the documentation: the overview, and the web UI with the demo's third
// delivery, which waits for its second retry. It runs the demo and a browser, and stops both.
//
//	screenshot -demo bin/demo -o docs
//
// The browser is a Chromium or Chrome on the PATH.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/scripts/script"
)

const (
	width, height = 1400, 700
	// runTimeout bounds everything except the demo's shutdown.
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
	script.Run("screenshot", func(ctx context.Context) { run(ctx, *demo, *folder) })
}

func run(ctx context.Context, program, folder string) {
	script.Check(os.MkdirAll(folder, 0o755))
	scratch := script.Must(os.MkdirTemp("", "herald-screenshot-"))
	defer script.Close(func() error { return os.RemoveAll(scratch) })
	fmt.Println("running the demo until its third delivery waits, half a minute")
	demo, err := trial.Program{Name: "demo", Path: program, Args: []string{"--listen", "127.0.0.1:0"},
		Env: os.Environ(), Log: filepath.Join(scratch, "demo.log")}.Start()
	if err != nil {
		script.Fail("make build makes the demo: %w", err)
	}
	defer script.Close(script.Within(ctx, stopTimeout, demo.Terminate))
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	webUI := awaitRetry(ctx, demo)
	// Without NoSandbox, Chromium refuses to run as root. The only pages are our own.
	ctx, closeBrowser := chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.WindowSize(width, height), chromedp.NoSandbox)...)
	defer closeBrowser()
	ctx, closeTab := chromedp.NewContext(ctx)
	defer closeTab()
	takePicture(ctx, webUI+page, filepath.Join(folder, "web-ui.png")) // the page has a table only while a delivery waits
	takePicture(ctx, strings.TrimSuffix(webUI, "monitor/"), filepath.Join(folder, "overview.png"))
}

// takePicture stores a picture of a page on which a row of a table is visible. Pages load their data asynchronously.
func takePicture(ctx context.Context, address, picture string) {
	var png []byte
	script.Check(chromedp.Run(ctx, chromedp.EmulateViewport(width, height), chromedp.Navigate(address),
		chromedp.WaitVisible("tbody tr", chromedp.ByQuery), chromedp.CaptureScreenshot(&png)))
	script.Check(os.WriteFile(picture, png, 0o644))
	fmt.Printf("wrote %s (%d bytes)\n", picture, len(png))
}

// awaitRetry waits until a delivery of the demo waits long enough for a picture, and returns the web UI's address.
func awaitRetry(ctx context.Context, demo *trial.Process) (webUI string) {
	script.Check(demo.Await(ctx, 50*time.Millisecond, "a delivery to wait for its second retry", func() (bool, error) {
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
	}))
	return webUI
}
