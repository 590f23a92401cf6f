//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	width, height = 1400, 700
	shotTimeout   = 40 * time.Second
	// pageTime is how long the page may run before the picture is taken, because it loads its data asynchronously.
	pageTime = 4000 // ms
	// fewColours is more colours than an empty page has, and fewer than a drawn page has.
	fewColours = 20
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

// photograph takes a picture of the web UI's page. A delivery must be waiting before and after.
func photograph(ctx context.Context, browser, webUI, picture string) error {
	if err := findWaiting(ctx, webUI); err != nil {
		return err
	}
	if err := takePicture(ctx, browser, webUI+page, picture); err != nil {
		return err
	}
	if err := findWaiting(ctx, webUI); err != nil {
		return fmt.Errorf("after the picture: %w", err)
	}
	return nil
}

// takePicture takes a picture of any page, and stores it unless the page is empty.
func takePicture(ctx context.Context, browser, address, picture string) error {
	scratch, err := os.MkdirTemp("", "herald-screenshot-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	shot := filepath.Join(scratch, "shot.png")
	if err := shoot(ctx, browser, address, shot, filepath.Join(scratch, "profile")); err != nil {
		return err
	}
	b, err := os.ReadFile(shot)
	if err != nil {
		return fmt.Errorf("the browser took no picture: %w", err)
	}
	if err := drawn(b); err != nil {
		return err
	}
	if err := os.WriteFile(picture, b, 0o644); err != nil {
		return err
	}
	fmt.Printf("wrote %s (%d bytes)\n", picture, len(b))
	return nil
}

// findWaiting returns an error unless a delivery is waiting, according to the web UI's API.
func findWaiting(ctx context.Context, webUI string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, webUI+"api/queues/retry/retry_tasks", nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask the web UI what waits: %w", err)
	}
	defer answer.Body.Close()
	var got struct {
		Tasks []json.RawMessage `json:"tasks"`
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&got); err != nil {
		return fmt.Errorf("the web UI answered %s: %w", answer.Status, err)
	}
	if len(got.Tasks) == 0 {
		return errors.New("the web UI shows no delivery in state retry in the queue retry")
	}
	return nil
}

func shoot(ctx context.Context, browser, address, shot, profile string) error {
	ctx, cancel := context.WithTimeout(ctx, shotTimeout)
	defer cancel()
	// A browser's background services are not needed for a picture, and log errors on a closed network.
	args := []string{"--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--hide-scrollbars", "--disable-dev-shm-usage", "--user-data-dir=" + profile,
		fmt.Sprintf("--window-size=%d,%d", width, height), fmt.Sprintf("--virtual-time-budget=%d", pageTime), "--screenshot=" + shot}
	if os.Geteuid() == 0 {
		args = append(args, "--no-sandbox") // otherwise Chromium refuses to run as root; the only page is our own
	}
	cmd := exec.CommandContext(ctx, browser, append(args, address)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", browser, err, output)
	}
	return nil
}

// drawn returns an error for a picture of an empty page.
func drawn(picture []byte) error {
	img, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return fmt.Errorf("the browser's picture is no PNG: %w", err)
	}
	if n := colours(img, fewColours); n < fewColours {
		return fmt.Errorf("the picture has only %d colours: the page was not drawn", n)
	}
	return nil
}

// colours counts an image's colours, at most up to enough.
func colours(img image.Image, enough int) int {
	seen := map[color.Color]bool{}
	for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y++ {
		for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
			if seen[img.At(x, y)] = true; len(seen) >= enough {
				return len(seen)
			}
		}
	}
	return len(seen)
}
