package canary

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

const (
	plain   = "Zr7QmW3xKp9LdT2vBn5HcYs8GfJ4"
	special = `Zr7QmW3xKp9L/"<&>\+=%dT2vBn5HcYs8`
)

func needles(t testing.TB, texts ...string) *Needles {
	t.Helper()
	var secrets []Secret
	for i, text := range texts {
		secrets = append(secrets, Secret{fmt.Sprint("secret ", i), text})
	}
	n, err := NewNeedles(secrets...)
	heraldtest.Must(t, err)
	return n
}

// TestFoundInEveryForm: a secret is found in every form in which a program may write it without hiding it.
func TestFoundInEveryForm(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{plain, special} {
		n := needles(t, secret)
		quoted, err := json.Marshal(secret)
		heraldtest.Must(t, err)
		wide := strings.Join(strings.Split(secret, ""), "\x00") + "\x00"
		hidden := map[string]string{
			"clear": secret, "in words": "before" + secret + "after", "the beginning": "x" + secret[:9], "a middle": "…" + secret[3:12] + "…", "the end": secret[len(secret)-8:],
			"%v": fmt.Sprintf("%v", []byte(secret)), "%#v": fmt.Sprintf("%#v", []byte(secret)), "%x": fmt.Sprintf("%x", secret), "% X of half": fmt.Sprintf("%X", secret[5:20]),
			"%q": fmt.Sprintf("%q", secret), "json": string(quoted), "json of bytes": string(must(json.Marshal([]byte(secret)))), "php": strings.ReplaceAll(string(quoted), "/", `\/`),
			"html": html.EscapeString(secret), "query": url.QueryEscape(secret), "path": url.PathEscape(secret), "utf-16": wide,
			"wrapped base64": wrap(base64.StdEncoding.EncodeToString([]byte("0123456789012345678901234567890123456789" + secret + "0123456789012345678901234567890123456789"))),
		}
		for shift := range 4 {
			around := strings.Repeat("x", shift) + secret + "yz"
			hidden[fmt.Sprint("base64, ", shift)] = base64.StdEncoding.EncodeToString([]byte(around))
			hidden[fmt.Sprint("base64url, ", shift)] = base64.RawURLEncoding.EncodeToString([]byte(around))
			hidden[fmt.Sprint("basic, ", shift)] = "Basic " + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("u", shift)+":"+secret))
		}
		for how, text := range hidden {
			found := n.Search("here", []byte(text))
			if len(found) != 1 || found[0].Secret != "secret 0" || found[0].Place != "here" {
				t.Errorf("%s: %q: %v", how, text, found)
			}
		}
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func wrap(s string) string {
	var lines []string
	for len(s) > 64 {
		lines, s = append(lines, s[:64]), s[64:]
	}
	return strings.Join(append(lines, s), "\n")
}

// TestNotFound: other secrets, fragments that are too short, masked secrets and noise are not found.
func TestNotFound(t *testing.T) {
	t.Parallel()
	n := needles(t, plain, special)
	var noise strings.Builder
	for range 2000 {
		noise.WriteString(Random(97) + " " + fmt.Sprintf("%x", Random(31)) + "\n")
	}
	for _, text := range []string{"", "short", plain[:7] + " " + plain[7:14], "******", "Bearer ******", Token("/"), noise.String(), strings.Repeat("\x00", 4096)} {
		if found := n.Search("here", []byte(text)); len(found) > 0 {
			t.Errorf("%v", found)
		}
	}
}

func TestFindingsNameTheSecret(t *testing.T) {
	t.Parallel()
	a, b := Token("/"), Token(`"<&`)
	n := needles(t, a, b)
	const place = "the file"
	found := n.Search(place, []byte("first "+b+b+" then "+a))
	if len(found) != 2 || found[0].Secret != "secret 1" || found[1].Secret != "secret 0" || found[0].At != 6 || found[0].Form != "in clear" {
		t.Fatal(found)
	}
	if text := found[0].String(); !strings.Contains(text, place) || !strings.Contains(text, `"first `) || !strings.Contains(text, "secret 1") {
		t.Error(text)
	}
	if _, err := NewNeedles(Secret{"short", "0123456789"}); err == nil || !strings.Contains(err.Error(), "short") {
		t.Errorf("%v", err)
	}
}
