package oauth

import (
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestParseChallenge(t *testing.T) {
	t.Parallel()
	const doc = "https://a.example/.well-known/oauth-protected-resource/mcp"
	for name, tt := range map[string]struct {
		values []string
		want   Challenge
	}{
		"none":           {nil, Challenge{}},
		"empty":          {[]string{""}, Challenge{}},
		"bare":           {[]string{"Bearer"}, Challenge{Bearer: true}},
		"case":           {[]string{`bEARER Resource_Metadata="` + doc + `", SCOPE=a`}, Challenge{Bearer: true, Metadata: doc, Scope: "a"}},
		"all":            {[]string{`Bearer realm="x", error="insufficient_scope", scope="a b", resource_metadata="` + doc + `"`}, Challenge{true, doc, "a b", "insufficient_scope"}},
		"bad spaces":     {[]string{"Bearer  error = \"invalid_token\" ,\t scope = \"a  b a\""}, Challenge{Bearer: true, Error: "invalid_token", Scope: "a b"}},
		"no commas":      {[]string{`Bearer resource_metadata="` + doc + `" scope="a"`}, Challenge{Bearer: true, Metadata: doc, Scope: "a"}},
		"unquoted":       {[]string{"Bearer resource_metadata=" + doc + ", error=invalid_token"}, Challenge{Bearer: true, Metadata: doc, Error: "invalid_token"}},
		"escapes":        {[]string{`Bearer scope="a\ b\"c", error="x"`}, Challenge{Bearer: true, Scope: "a", Error: "x"}},
		"comma in it":    {[]string{`Bearer realm="a, Basic scope=c", scope="d"`}, Challenge{Bearer: true, Scope: "d"}},
		"another first":  {[]string{`Basic realm="x", Bearer scope="a"`}, Challenge{Bearer: true, Scope: "a"}},
		"another last":   {[]string{`Bearer scope="a", Basic realm="x", scope="b"`}, Challenge{Bearer: true, Scope: "a"}},
		"two values":     {[]string{`Basic realm="x"`, `Bearer scope="a"`}, Challenge{Bearer: true, Scope: "a"}},
		"DPoP":           {[]string{`DPoP algs="ES256", resource_metadata="` + doc + `"`}, Challenge{Metadata: doc}},
		"two Bearer":     {[]string{`Bearer scope="a", Bearer scope="b", error="c"`}, Challenge{Bearer: true, Scope: "a"}},
		"two documents":  {[]string{`Bearer resource_metadata="` + doc + `"`, `Bearer resource_metadata="https://b.example/"`}, Challenge{Bearer: true, Metadata: doc}},
		"twice":          {[]string{`Bearer scope="a", scope="b"`}, Challenge{Bearer: true, Scope: "a"}},
		"token68":        {[]string{"Negotiate YWJj+/Zg==, Bearer scope=a"}, Challenge{Bearer: true, Scope: "a"}},
		"token68 Bearer": {[]string{"Negotiate Bearer"}, Challenge{}},
		"Bearer token68": {[]string{"Bearer abc=="}, Challenge{Bearer: true}},
		"junk before":    {[]string{`@@@ "x", Bearer scope=a`}, Challenge{Bearer: true, Scope: "a"}},
		"junk inside":    {[]string{`Bearer ==, scope=a`}, Challenge{Bearer: true}},
		"no value":       {[]string{`Bearer realm="x", error=, scope="a"`}, Challenge{Bearer: true, Scope: "a"}},
		"no end":         {[]string{`Bearer scope="a`}, Challenge{Bearer: true}},
		"ends escaped":   {[]string{`Bearer scope="a\`}, Challenge{Bearer: true}},
		"other signs":    {[]string{"Bearer scope=\"a é \x01 b\", error=\"no words\""}, Challenge{Bearer: true, Scope: "a b"}},
		"long value":     {[]string{"Bearer scope=" + strings.Repeat("a", maxHeader)}, Challenge{}},
		"long code":      {[]string{"Bearer error=" + strings.Repeat("a", maxErrorCode+1)}, Challenge{Bearer: true}},
		"long address":   {[]string{"Bearer resource_metadata=" + strings.Repeat("a", maxURL+1)}, Challenge{Bearer: true}},
		"too many":       {append(make([]string, maxHeaders), "Bearer"), Challenge{}},
	} {
		heraldtest.Equal(t, name, ParseChallenge(tt.values), tt.want)
	}
}

func TestScopes(t *testing.T) {
	t.Parallel()
	r := Resource{Scopes: []string{"b", "a"}}
	heraldtest.Equal(t, "the scope of the resource", r.ScopeFor(Challenge{}), "b a")
	heraldtest.Equal(t, "the scope of the challenge", r.ScopeFor(Challenge{Scope: "c"}), "c")
	heraldtest.Equal(t, "the scope of an empty resource", (Resource{}).ScopeFor(Challenge{}), "")
	long := strings.Repeat("s", maxScope)
	for _, tt := range [][3]string{{"a", long, "a"}, {"", "", ""}, {"a", "", "a"}, {"", "b", "b"}, {"a b", "b c", "a b c"}, {"a\n", "b\"", ""}} {
		heraldtest.Equal(t, tt[0]+" and "+tt[1], UnionScopes(tt[0], tt[1]), tt[2])
	}
}
