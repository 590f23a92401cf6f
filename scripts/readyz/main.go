// Command readyz checks whether the worker on this machine is ready. It is the container's health check, because the
// image has neither a shell nor curl. It reads the port from HERALD_LISTEN and exits with 0 if /readyz returns 200.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

const defaultListen = "127.0.0.1:8080" // as printed by `worker config`

func main() {
	if err := ask(strings.TrimRight(os.Getenv("HERALD_LISTEN"), "\r\n")); err != nil {
		fmt.Fprintln(os.Stderr, "readyz:", err)
		os.Exit(1)
	}
}

func ask(listen string) error {
	if listen == "" {
		listen = defaultListen
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("HERALD_LISTEN: %w", err)
	}
	if host == "" || host == "0.0.0.0" || host == "::" {
		host = "127.0.0.1"
	}
	client := &http.Client{Timeout: 3 * time.Second}
	answer, err := client.Get("http://" + net.JoinHostPort(host, port) + "/readyz")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	body, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10)) // the body is only shown
	return fmt.Errorf("%s: %s", answer.Status, body)
}
