package config

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
)

// setText returns a function that stores a text that the checks accept. A check returns a problem, or "".
func setText(field *string, checks ...func(string) string) func(string) string {
	return func(s string) string {
		for _, check := range checks {
			if problem := check(s); problem != "" {
				return problem
			}
		}
		*field = s
		return ""
	}
}

// setSecret is setText for a secret.
func setSecret(field *secret.Secret, checks ...func(string) string) func(string) string {
	return func(s string) string {
		problem := setText(new(string), checks...)(s)
		if problem == "" {
			*field = secret.New(s)
		}
		return problem
	}
}

func setOneOf(field *string, allowed ...string) func(string) string {
	return setText(field, func(s string) string {
		if slices.Contains(allowed, s) {
			return ""
		}
		return "must be one of " + strings.Join(allowed, ", ")
	})
}

func setNumber(field *int, low, high int) func(string) string {
	return func(s string) string {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return fmt.Sprintf("must be a number from %d to %d", low, high)
		}
		*field = n
		return ""
	}
}

func setDuration(field *time.Duration, low, high time.Duration) func(string) string {
	return func(s string) string {
		d, err := time.ParseDuration(s)
		if err != nil || d < low || d > high {
			return fmt.Sprintf("must be a duration from %s to %s, as in 30s or 2m", low, high)
		}
		*field = d
		return ""
	}
}

func splitList(s string) []string {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

func checkRedisURL(s string) string {
	scheme, rest, _ := strings.Cut(s, "://")
	if rest == "" || !slices.Contains([]string{"redis", "rediss", "redis-socket", "redis-sentinel", "rediss-sentinel",
		"redis-cluster", "redis-clusters"}, scheme) {
		return "must be a URL with redis://, rediss://, redis-socket://, redis-sentinel://, rediss-sentinel://, " +
			"redis-cluster:// or redis-clusters://"
	}
	return ""
}

// checkDatabaseURL accepts both forms that libpq accepts: a URL, or keywords as in
// "host=/run/postgresql dbname=herald".
func checkDatabaseURL(s string) string {
	scheme, rest, isURL := strings.Cut(s, "://")
	if isURL && (rest == "" || scheme != "postgres" && scheme != "postgresql") || !isURL && !strings.Contains(s, "=") {
		return "must be a URL, as in postgres://user:password@host/database"
	}
	return ""
}

func checkAddress(s string) string {
	_, port, err := net.SplitHostPort(s)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n > 65535 {
		return "must be host:port, as in 127.0.0.1:8080; [::1]:8080 for IPv6"
	}
	return ""
}

// checkKeyset accepts every wrapped keyset, because it cannot be validated without its master key.
func checkKeyset(s string) string {
	k := secret.New(s)
	if secret.IsWrapped(k) {
		return ""
	}
	_, err := secret.Parse(k)
	if fault, ok := errors.AsType[*secret.KeysetError](err); ok {
		return fault.Problem
	} else if err != nil {
		return "cannot be read"
	}
	return ""
}

var toolName = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,128}$`)

func checkToolNames(names []string) (problem string) {
	for _, name := range names {
		if !toolName.MatchString(name) {
			return fmt.Sprintf("%q is not a tool's name (at most 128 letters, digits, _ - . /)", name)
		}
	}
	return ""
}

// checkPlainURL returns why s is not an http or https URL without user, query and fragment, or "" if it is one.
func checkPlainURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return "is not an http or https URL"
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "must have no user, password, query or fragment"
	}
	return ""
}

func checkAlertURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return "must be an http or https URL"
	case u.User != nil || u.Fragment != "":
		return "must have no user, password or fragment: the post is signed"
	}
	return ""
}

func checkAlertSecret(s string) string {
	text, prefixed := strings.CutPrefix(s, "whsec_")
	key, err := base64.StdEncoding.DecodeString(text)
	if !prefixed || err != nil || len(key) < 24 || len(key) > 64 {
		return "must be whsec_ and 24 to 64 bytes in base64"
	}
	return ""
}

// listName matches a Redis list name that Herald can extend to names of its own keys in the same cluster slot.
var listName = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,128}$`)

func checkListName(s string) string {
	switch {
	case !listName.MatchString(s):
		return "must be the name of a list in Redis: 1 to 128 letters, digits and any of _ . : -"
	case strings.HasPrefix(s, "asynq:"), strings.HasPrefix(s, "herald:"):
		return "must not begin with asynq: or herald:, where the queue keeps its own keys"
	}
	return ""
}
