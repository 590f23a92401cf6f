//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/chromedp/chromedp"
)

const (
	width, height = 1400, 700
	shotTimeout   = 40 * time.Second
)

// findBrowser returns the path of a Chromium. On Debian, as root, it installs one and prints that.
func findBrowser(ctx context.Context) (string, error) {
	if b := os.Getenv("CHROMIUM"); b != "" {
		return exec.LookPath(b)
	}
	if b := onPath(); b != "" {
		return b, nil
	}
	if _, err := exec.LookPath("apt-get"); err == nil && os.Geteuid() == 0 {
		fmt.Println("no browser found: installing the packages chromium and fonts-dejavu-core with apt-get")
		for _, args := range [][]string{{"update", "-qq"}, {"install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"}} {
			cmd := exec.CommandContext(ctx, "apt-get", args...)
			cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
			cmd.Stderr = os.Stderr
			if err := cmd.Run(); err != nil {
				return "", fmt.Errorf("apt-get %s: %w", args[0], err)
			}
		}
		if b := onPath(); b != "" {
			return b, nil
		}
	}
	return "", errors.New("no Chromium was found: install one, or set CHROMIUM to its path")
}

func onPath() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome-stable", "google-chrome"} {
		if b, err := exec.LookPath(name); err == nil {
			return b
		}
	}
	return ""
}

// openBrowser returns a context with a browser that starts with the first picture.
func openBrowser(ctx context.Context, path string) (context.Context, func()) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
		chromedp.WindowSize(width, height))
	if os.Geteuid() == 0 {
		// Otherwise Chromium refuses to run as root. The only pages are our own.
		options = append(options, chromedp.NoSandbox)
	}
	ctx, end := chromedp.NewExecAllocator(ctx, options...)
	ctx, closeTab := chromedp.NewContext(ctx)
	return ctx, func() {
		closeTab()
		end()
	}
}

// takePicture stores a picture of a page on which an element is visible. Pages load their data asynchronously.
func takePicture(ctx context.Context, address, element, picture string) error {
	var png []byte
	shoot := chromedp.ActionFunc(func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, shotTimeout)
		defer cancel()
		return chromedp.Tasks{chromedp.EmulateViewport(width, height), chromedp.Navigate(address),
			chromedp.WaitVisible(element, chromedp.ByQuery), chromedp.CaptureScreenshot(&png)}.Do(ctx)
	})
	if err := chromedp.Run(ctx, shoot); err != nil {
		return fmt.Errorf("take a picture of %s: %w", address, err)
	}
	if err := os.WriteFile(picture, png, 0o644); err != nil {
		return err
	}
	fmt.Printf("wrote %s (%d bytes)\n", picture, len(png))
	return nil
}
