package doctor

import (
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

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator/config"
)

// checkPort checks that the worker's address can be listened on, or that a worker already listens there.
func (d *doctor) checkPort(ctx context.Context) []Finding {
	listen := d.Settings.Listen
	if d.run.Listen != "" {
		d.worker = d.run.Listen
		return reportOK("%s is held by the running worker (process %d)", d.run.Listen, d.run.PID)
	}
	if err := config.CheckListen(listen, d.Settings.APIToken); err != nil {
		return reportFailure("%v", err)
	}
	l, err := net.Listen("tcp", listen)
	switch {
	case err == nil:
		_ = l.Close()
		return reportOK("%s can be listened on", listen)
	case errors.Is(err, syscall.EADDRINUSE) && isWorker(ctx, listen):
		d.worker = listen
		return reportOK("%s is held by a running worker", listen)
	case errors.Is(err, syscall.EADDRINUSE):
		return reportFailure("HERALD_LISTEN %s is held by another program: stop that one, or set HERALD_LISTEN to "+
			"another port", listen)
	case errors.Is(err, syscall.EACCES):
		return reportFailure("HERALD_LISTEN %s: this user may not listen there: set a port above 1023", listen)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return reportFailure("HERALD_LISTEN %s is not an address of this machine", listen)
	}
	return reportFailure("HERALD_LISTEN %s cannot be listened on: %v", listen, err)
}

// isWorker reports whether the program that listens on an address is a Herald worker.
func isWorker(ctx context.Context, listen string) bool {
	var health struct{ Status string }
	code, err := getJSON(ctx, listen, "/healthz", secret.Secret{}, &health)
	return err == nil && code == http.StatusOK && health.Status == "alive"
}

// compareSettings reports settings in which the running worker and this shell differ.
func (d *doctor) compareSettings(ctx context.Context) []Finding {
	if d.worker == "" {
		return nil
	}
	var there map[string]string
	code, err := getJSON(ctx, d.worker, config.SettingsPath, d.Settings.APIToken, &there)
	switch {
	case err != nil:
		return reportWarning("the running worker's settings cannot be asked for at %s: it does not answer", d.worker)
	case code == http.StatusUnauthorized:
		return reportWarning("the running worker has another HERALD_API_TOKEN than this shell: with the same, its " +
			"settings are compared here")
	case code != http.StatusOK:
		return reportWarning("the running worker does not return its settings (HTTP %d): it may be of an older version",
			code)
	}
	if differ := describeDifferences(there, d.Settings.Public()); len(differ) > 0 {
		return reportWarning("the running worker has other settings than this shell, and goes by its own: %s. "+
			"Restart the worker with the settings of this shell, or use the worker's settings here; "+
			"of secrets only whether they are set is compared", strings.Join(differ, "; "))
	}
	return reportOK(
		"the running worker has the settings of this shell; of secrets only whether they are set is compared")
}

// describeDifferences lists the settings that differ. It ignores the data folder, which is known to be the same, and
// the log settings, which may differ between processes.
func describeDifferences(there, here map[string]string) (differences []string) {
	names := maps.Clone(here)
	maps.Copy(names, there)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		own := slices.Contains([]string{"HERALD_DATA", "HERALD_LOG_LEVEL", "HERALD_LOG_FORMAT"}, name)
		if a, b := there[name], here[name]; a != b && !own {
			differences = append(differences,
				fmt.Sprintf("%s is %s there, %s here", name, describeValue(a), describeValue(b)))
		}
	}
	return differences
}

// describeValue returns a value in words. Of a secret it says only that it is set.
func describeValue(value string) string {
	switch {
	case value == "":
		return "not set"
	case strings.Trim(value, "*") == "":
		return "set"
	}
	return text.Shorten(value)
}

// maxAnswer bounds the response in bytes. It is far more than a worker's settings need.
const maxAnswer = 1 << 20

// getJSON sends a GET request to an address on this machine and decodes the JSON response into v. The caller passes the
// token only if a worker listens there.
func getJSON(ctx context.Context, listen, path string, token secret.Secret, v any) (status int, err error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return 0, err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+path, nil)
	if err != nil {
		return 0, err
	}
	if !token.IsZero() {
		req.Header.Set("Authorization", "Bearer "+token.Reveal())
	}
	client := &http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusOK {
		err = json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(v)
	}
	return resp.StatusCode, err
}
