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
	"strings"
	"syscall"
	"time"
)

// runTimeout bounds everything except the installation of a browser.
const runTimeout = 3 * time.Minute

// page is the path of the page in the picture, relative to the web UI's address.
const page = "queues/retry?status=retry"

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

func run(ctx context.Context, demo, folder string) (err error) {
	browser, err := findBrowser(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	d, err := startDemo(ctx, demo)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	webUI, err := d.waiting(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := photograph(ctx, browser, webUI, filepath.Join(folder, "web-ui.png")); err != nil {
		return err
	}
	return takePicture(ctx, browser, strings.TrimSuffix(webUI, "monitor/"), filepath.Join(folder, "overview.png"))
}
