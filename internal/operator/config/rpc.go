package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/base/secret"
)

// maxNodes bounds the nodes of one chain: a request that no node answers is sent to all of them in turn.
const maxNodes = 16

// parseRPC parses a comma-separated list of node URLs. The problem never quotes a URL, because it may contain a key.
func parseRPC(text string) (urls []secret.Secret, problem string) {
	const wanted = "must be a URL with http://, https://, ws:// or wss://"
	parts := splitURLs(text)
	if len(parts) > maxNodes {
		return nil, fmt.Sprintf("names %d nodes, more than %d", len(parts), maxNodes)
	}
	for i, part := range parts {
		switch {
		case isRPC(part) && slices.Contains(parts[:i], part):
			return nil, fmt.Sprintf("names the same URL twice (URL %d): one node is not to be counted as two", i+1)
		case isRPC(part):
			urls = append(urls, secret.New(part))
		case len(parts) > 1:
			return nil, fmt.Sprintf("URL %d %s", i+1, wanted)
		default:
			return nil, wanted
		}
	}
	return urls, ""
}

// splitURLs splits a list at commas. A comma that is not followed by another URL belongs to the path or query before
// it.
func splitURLs(text string) (parts []string) {
	for part := range strings.SplitSeq(text, ",") {
		if n := len(parts); n > 0 && !strings.Contains(part, "://") && !isBlankOrSpaced(part) {
			parts[n-1] += "," + part
			continue
		}
		parts = append(parts, strings.TrimSpace(part))
	}
	return parts
}

// isBlankOrSpaced reports whether a part of a list is blank, or begins or ends with a space. splitURLs keeps such a
// part separate, so that parseRPC reports it by its number as an invalid URL.
func isBlankOrSpaced(part string) bool {
	return strings.TrimSpace(part) == "" || strings.TrimSpace(part) != part
}

func isRPC(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Hostname() != "" && !strings.Contains(u.Hostname(), ",") &&
		slices.Contains([]string{"http", "https", "ws", "wss"}, u.Scheme)
}

// setTrust parses HERALD_RPC_TRUST: the chains whose nodes are trusted not to leave out logs.
func setTrust(c *Config, s string) string {
	c.RPCTrust = map[uint64]bool{}
	for _, part := range splitList(s) {
		id := parseChainID(part)
		if id == 0 && part != "all" {
			return fmt.Sprintf("%q is not a chain id, or all", part)
		}
		c.RPCTrust[id] = true
	}
	return ""
}

// setWatch parses HERALD_WATCH: the chains that the worker follows.
func setWatch(c *Config, s string) string {
	c.Watch = nil
	for _, part := range splitList(s) {
		id := parseChainID(part)
		if id == 0 {
			return fmt.Sprintf("%q is not a chain id", part)
		}
		if !slices.Contains(c.Watch, id) {
			c.Watch = append(c.Watch, id)
		}
	}
	return ""
}

// TrustsNodes reports whether Herald relies on the chain's nodes to return every log.
func (c *Config) TrustsNodes(chainID uint64) bool { return c.RPCTrust[0] || c.RPCTrust[chainID] }
