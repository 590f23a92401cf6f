package erc8004

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestAgentName(t *testing.T) {
	t.Parallel()
	const registry = "0x5FbDB2315678afecb367f032d93F642f64180aa3"
	for s, want := range map[string]string{"8453:42": "8453:42", "08453:0042": "8453:42", "1:000": "1:0", "0:0": "0:0",
		"1:" + strings.Repeat("9", 78): "1:" + strings.Repeat("9", 78), "1:" + strings.Repeat("0", 79): "", "": "", "1": "", ":1": "",
		"1:": "", "1:-1": "", "1:0x1": "", "-1:1": "", "9223372036854775808:1": "", "1:1:1": "", " 1:1": ""} {
		a, ok := ParseAgent(s)
		if ok != (want != "") || ok && (a.String() != want || a.Registry != "") {
			t.Errorf("%q: %+v, %t; want %q", s, a, ok, want)
		}
	}
	full := "31337:" + strings.ToLower(registry) + ":7"
	a, ok := ParseFullName("31337:" + registry + ":7")
	if !ok || a.FullName() != full || a.Argument() != "31337:7 --registry "+registry {
		t.Errorf("%+v, %t: %s, %s", a, ok, a.FullName(), a.Argument())
	}
	if a, ok := ParseFullName("31337:7"); ok {
		t.Errorf("a name without a registry: %+v", a)
	}
	base, _ := KnownDeployment(8453)
	for want, a := range map[string]Agent{"8453:7": {ChainID: 8453, Registry: strings.ToLower(base.Identity.Hex()), ID: "7"},
		"8453:8": {ChainID: 8453, ID: "8"}, "": {ChainID: 8453}} {
		heraldtest.Equal(t, fmt.Sprintf("%+v", a), a.Argument(), want)
	}
}
