package doctest

import (
	"fmt"
	"regexp"
	"strings"
)

// substitution replaces text that a page cannot know by text that can run. The list is complete; CONTRIBUTING.md
// describes it to authors.
type substitution struct {
	text string // part of the page
	real func(s *session) string
	why  string
}

var substitutions = []substitution{
	{`"chainId": 8453, "agentId": "42"`, func(*session) string { return `"chainId": 31337, "agentId": "0"` }, "the agent of the demo's first story"},
	{"8453:42", func(s *session) string { return s.agentName }, "an agent of the demo"},
	{"RPC_URL_8453=https://…", func(s *session) string { return "RPC_URL_31337=" + s.rpc }, "the demo's chain"},
	{"127.0.0.1:8080", func(s *session) string { return s.listen }, "where the worker of own services listens"},
	{"127.0.0.1:8081", func(s *session) string { return s.free }, "a port that is free here"},
	{"postgres://herald@db.example/herald", func(s *session) string { return "'" + s.database + "'" }, "an empty database"},
	{"redis-cli -u redis://redis.example", func(s *session) string { return s.redisCLI }, "a redis-cli that reaches that Redis"},
	{"postgres://agentauri@db.example/agentauri", func(s *session) string { return "'" + s.oldDatabase + "'" },
		"a database with the old backend's tables"},
	{"RPC_URL_8453=https://node.example", func(s *session) string { return "RPC_URL_31337=" + s.rpc + " " + s.registries },
		"the demo's chain, with its registries"},
	{"HERALD_WATCH=8453", func(*session) string { return "HERALD_WATCH=31337" }, "the demo's chain"},
	{"--chain 8453", func(*session) string { return "--chain 31337" }, "the demo's chain"},
	{`"url": "https://agent.example/mcp"}, "tool_name"`, func(s *session) string { return `"url": "` + s.agent + `"}, "tool_name"` },
		"the agent of the demo's first story"},
	{"redis://redis.example", func(s *session) string { return "'" + s.redis + "'" }, "an empty Redis"},
	{"remove OLD", func(*session) string { return "remove $(bin/worker keys list | awk 'NR==2 {print $1}')" }, "the key made first"},
	{"ipfs://… --hash 0x…", func(s *session) string { return s.document }, "the feedback file of the demo's first story"},
}

// placeholder matches text that a reader fills in and that no substitution replaces.
var placeholder = regexp.MustCompile(`…|<[a-z][a-zA-Z-]*>`)

// substitute applies the substitutions to a command. A remaining placeholder is a fault of the page.
func (s *session) substitute(text string) (string, error) {
	for _, sub := range substitutions {
		if strings.Contains(text, sub.text) {
			text = strings.ReplaceAll(text, sub.text, sub.real(s))
		}
	}
	if left := placeholder.FindString(text); left != "" {
		return "", fmt.Errorf("nothing stands for %q: write something real, or add a substitution", left)
	}
	return text, nil
}
