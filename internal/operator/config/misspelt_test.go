package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestMisspeltVariables(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ environ, want string }{
		{"HERALD_BINDNIG=off", "HERALD_BINDNIG: nothing reads it: did you mean HERALD_BINDING?"},
		{"HERALD_LISTN=:1", "HERALD_LISTN: nothing reads it: did you mean HERALD_LISTEN?"},
		{"HERALD_KEYSET_FLE=x", "HERALD_KEYSET_FLE: nothing reads it: did you mean HERALD_KEYSET_FILE?"},
		{"HERALD_DATABASE_URL=x", "HERALD_DATABASE_URL: nothing reads it: did you mean DATABASE_URL?"},
		{"HERALD_RPC_URL_8453=x", "HERALD_RPC_URL_8453: nothing reads it: did you mean RPC_URL_8453?"},
		{"HERALD_SOMETHING_ELSE=x", "HERALD_SOMETHING_ELSE: nothing reads it: unset it, or see `worker config` for the names that there are"},
		{"HERALD_EXPLORR_1=https://a", "HERALD_EXPLORR_1: nothing reads it: did you mean HERALD_EXPLORER_1?"},
		{"REDIS_URI=redis://a", "REDIS_URI: nothing reads it: did you mean REDIS_URL?"},
		{"DATABSE_URL=postgres://a/b", "DATABSE_URL: nothing reads it: did you mean DATABASE_URL?"},
		{"RPCURL_8453=http://a", "RPCURL_8453: nothing reads it: did you mean RPC_URL_8453?"},
		{"IDENTITY_REGISTERY_1=0x", "IDENTITY_REGISTERY_1: nothing reads it: did you mean IDENTITY_REGISTRY_1?"},
		// These are not misspellings.
		{"HERALD_LISTEN=127.0.0.1:0", ""}, {"HERALD_BINDNIG=", ""}, {"PATH=/bin", ""}, {"LISTEN=1", ""}, {"MY_DATABASE_URL=x", ""},
		{"REDIS_URL=redis://a REDIS_URI=redis://a", ""},
		{"HERALD_EXPLORER_8453=https://basescan.org", ""},
		{"HERALD_SERVICE_HOST=10.0.0.1", ""}, {"HERALD_SERVICE_PORT_HTTP=1", ""}, {"HERALD_PORT=tcp://10.0.0.1:80", ""}, {"HERALD_PORT_8080_TCP_ADDR=10.0.0.1", ""},
		{"HERALD_REDIS_SERVICE_HOST=10.0.0.1", ""}, {"HERALD_REDIS_PORT_6379_TCP=tcp://10.0.0.1:6379", ""}, {"HERALD_REDIS_PORT_6379_TCP_ADDR=10.0.0.1", ""},
		{"HERALD_REQUIRE_SERVICES=1", ""},
	} {
		cfg, err := Load(strings.Fields(c.environ))
		if err != nil {
			t.Errorf("%s: %v", c.environ, err)
		}
		said := ""
		for _, m := range cfg.Misspelt() {
			said += m.Name + ": " + m.Explain()
		}
		heraldtest.Equal(t, c.environ, said, c.want)
		// `worker config` says the same and hides the value, which may be a secret.
		shown := slices.ContainsFunc(cfg.Settings(), func(s Setting) bool { return s.Source == "not read" && s.Value == mask && s.Help != "" })
		heraldtest.Equal(t, c.environ+" is shown in the settings", shown, c.want != "")
	}
}

// TestPublic: the public settings of a running worker contain no secret, and differ if the settings differ.
func TestPublic(t *testing.T) {
	t.Parallel()
	load := func(environ ...string) map[string]string {
		cfg, err := Load(environ)
		heraldtest.Must(t, err)
		return cfg.Public()
	}
	const command, other = `HERALD_STDIO_COMMANDS=[["/bin/agent","hunter2"]]`, `HERALD_STDIO_COMMANDS=[["/bin/agent","hunter3"]]`
	a := load("HERALD_API_TOKEN=hunter2", "RPC_URL_8453=http://a/hunter2", "REDIS_URL=redis://:hunter2@a", command, "IPFS_GATEWAYS=https://a/hunter2", "HERALD_CONCURRENCY=7",
		"HERALD_NEW=hunter2")
	for name, value := range a {
		heraldtest.Lacks(t, name, value, "hunter2")
	}
	for name, want := range map[string]string{"HERALD_API_TOKEN": mask, "RPC_URL_8453": mask, "REDIS_URL": mask, "DATABASE_URL": "", "HERALD_CONCURRENCY": "7",
		"HERALD_LISTEN": "127.0.0.1:8080"} {
		heraldtest.Equal(t, name, a[name], want)
	}
	if name := "HERALD_STDIO_COMMANDS"; a[name] != load(command)[name] || a[name] == load(other)[name] || load()[name] != "" {
		t.Errorf("%q, %q", a[name], load(other)[name])
	}
}
