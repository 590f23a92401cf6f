package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"

	"github.com/agentherald/herald/internal/config"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/text"
)

// checkPort looks whether the worker's address can be listened on, or who has it. Of a worker that has it, the settings
// are compared with this shell's.
func (d *doctor) checkPort(ctx context.Context) {
	if d.run.Listen != "" {
		d.add("port", nil, fmt.Sprintf("%s is held by the running worker (process %d)", d.run.Listen, d.run.PID))
		d.compareSettings(ctx, d.run.Listen)
		return
	}
	if err := config.CheckListen(d.Settings.Listen, d.Settings.APIToken); err != nil {
		d.add("port", err, "")
		return
	}
	l, err := net.Listen("tcp", d.Settings.Listen)
	switch {
	case err == nil:
		_ = l.Close()
		d.add("port", nil, d.Settings.Listen+" can be listened on")
	case errors.Is(err, syscall.EADDRINUSE) && d.isWorker(ctx, d.Settings.Listen):
		d.add("port", nil, d.Settings.Listen+" is held by a running worker")
		d.compareSettings(ctx, d.Settings.Listen)
	case errors.Is(err, syscall.EADDRINUSE):
		d.add("port", fmt.Errorf("HERALD_LISTEN %s is held by another program: stop that one, or set HERALD_LISTEN to another port", d.Settings.Listen), "")
	case errors.Is(err, syscall.EACCES):
		d.add("port", fmt.Errorf("HERALD_LISTEN %s: this user may not listen there: set a port above 1023",
			d.Settings.Listen), "")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		d.add("port", fmt.Errorf("HERALD_LISTEN %s is not an address of this machine", d.Settings.Listen), "")
	default:
		d.add("port", fmt.Errorf("HERALD_LISTEN %s cannot be listened on: %w", d.Settings.Listen, err), "")
	}
}

// isWorker tells whether whoever listens there is a Herald worker.
func (d *doctor) isWorker(ctx context.Context, listen string) bool {
	var health struct{ Status string }
	code, err := d.getJSON(ctx, listen, "/healthz", secret.Secret{}, &health)
	return err == nil && code == http.StatusOK && health.Status == "alive"
}

// compareSettings names the settings that the running worker has and this shell would give it otherwise.
func (d *doctor) compareSettings(ctx context.Context, listen string) {
	var there map[string]string
	switch code, err := d.getJSON(ctx, listen, config.SettingsPath, d.Settings.APIToken, &there); {
	case err != nil:
		d.warn("worker", fmt.Sprintf("the running worker's settings cannot be asked for at %s: it does not answer",
			listen))
	case code == http.StatusUnauthorized:
		d.warn("worker", "the running worker has another HERALD_API_TOKEN than this shell: with the same, its settings are compared here")
	case code != http.StatusOK:
		d.warn("worker", fmt.Sprintf("the running worker does not tell its settings (HTTP %d): it may be of an older version", code))
	default:
		if differ := describeDifferences(there, d.Settings.Public()); len(differ) > 0 {
			d.warn("worker", "the running worker has other settings than this shell, and goes by its own: "+strings.Join(differ, "; ")+
				". Restart the worker with the settings of this shell, or set here what the worker has; of secrets only whether they are set is compared")
			return
		}
		d.add("worker", nil, "the running worker has the settings of this shell; of secrets only whether they are set is compared")
	}
}

// describeDifferences puts them in words. The data folder is known to be the same, and how much is logged is each
// process's own.
func describeDifferences(there, here map[string]string) (said []string) {
	names := map[string]bool{}
	for _, settings := range []map[string]string{there, here} {
		for name := range settings {
			names[name] = true
		}
	}
	for _, own := range []string{"HERALD_DATA", "HERALD_LOG_LEVEL", "HERALD_LOG_FORMAT"} {
		delete(names, own)
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, b := there[name], here[name]
		if a == b {
			continue
		}
		said = append(said, fmt.Sprintf("%s is %s there, %s here", name, text.Shorten(cmp.Or(maskValue(a), "not set")),
			text.Shorten(cmp.Or(maskValue(b), "not set"))))
	}
	return said
}

// maskValue tells of a secret that it is set.
func maskValue(value string) string {
	if value != "" && strings.Trim(value, "*") == "" {
		return "set"
	}
	return value
}

// maxAnswer is far more than a worker's settings take.
const maxAnswer = 1 << 20

// getJSON gets JSON from whoever listens there on this machine. Only a worker gets the token.
func (d *doctor) getJSON(ctx context.Context, listen, path string, token secret.Secret, v any) (status int, err error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return 0, err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	transport := &http.Transport{Proxy: nil, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	err = d.runBounded(ctx, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+path, nil)
		if err != nil {
			return err
		}
		if !token.IsZero() {
			req.Header.Set("Authorization", "Bearer "+token.Reveal())
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if status = resp.StatusCode; status != http.StatusOK {
			return nil
		}
		return json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(v)
	})
	return status, err
}
