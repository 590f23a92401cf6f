package secret

import (
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
	"testing"
)

// TestMaskerReadsEscapes checks that a secret is masked in every equivalent spelling, including nested ones, and that
// the surrounding text is not changed.
func TestMaskerReadsEscapes(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"plainsecret", `s3/cret+to=ken`, `a"b\c<d>&'e%41;f`, "schlüssel-und-🔑"} {
		m := NewMasker([]string{"another", secret})
		quoted, err := json.Marshal(secret)
		must(t, err)
		asJSON := string(quoted[1 : len(quoted)-1])
		var timid, numeric, all strings.Builder
		for _, r := range secret {
			numeric.WriteString(fmt.Sprintf("&#x%X;", r))
			if r < 0x10000 {
				timid.WriteString(fmt.Sprintf(`\u%04x`, r))
			} else {
				timid.WriteRune(r)
			}
		}
		for _, b := range []byte(secret) {
			all.WriteString(fmt.Sprintf("%%%02X", b))
		}
		spellings := map[string]string{"plain": secret, "JSON": asJSON, "PHP": strings.ReplaceAll(asJSON, "/", `\/`), "JSON without need": timid.String(),
			"HTML": html.EscapeString(secret), "numbers": numeric.String(), "JSON in HTML": html.EscapeString(asJSON)}
		if secret[0] < 0x80 && !strings.Contains(secret, "ü") {
			spellings["query"], spellings["path"], spellings["every byte"] = url.QueryEscape(secret), url.PathEscape(secret), all.String()
			spellings["Go"] = strings.Trim(fmt.Sprintf("%q", secret), `"`)
		}
		for name, spelt := range spellings {
			twice, err := json.Marshal(spelt)
			must(t, err)
			texts := []string{spelt}
			if name != "JSON in HTML" { // three nested encodings do not occur by accident
				texts = append(texts, strings.Trim(string(twice), `"`))
			}
			for _, text := range texts {
				for _, around := range [][2]string{{"", ""}, {"before ", " after"}, {`{"a\n\/":"`, `","b":"%20&amp;\u0041"}`}} {
					if got, want := m.Replace(around[0]+text+around[1]), around[0]+mask+around[1]; got != want {
						t.Errorf("%s of %q: %q", name, secret, got)
					}
				}
			}
		}
	}
}

// TestMaskerOfShortSecrets checks that a short secret is masked only as a separate word, so that longer words that
// contain it are not changed. A secret that occurs in every text, such as "true", is not masked.
func TestMaskerOfShortSecrets(t *testing.T) {
	t.Parallel()
	m := NewMasker([]string{"tiger", "p@s!", "ab", "true", "12345678"}, "feedback", "me")
	for text, want := range map[string]string{
		"tiger":                           mask,
		"user:tiger@host":                 "user:" + mask + "@host",
		`{"pass":"tiger","ok":true}`:      `{"pass":"` + mask + `","ok":true}`,
		`"\u0074iger" %74iger &#116;iger`: `"` + mask + `" ` + mask + ` ` + mask,
		"tigers and a tigerlily, Tiger":   "tigers and a tigerlily, Tiger",
		"schtiger tigerü tiger9 9tiger":   "schtiger tigerü tiger9 9tiger",
		"tigertiger tiger":                "tigertiger " + mask,
		"xp@s!y":                          "x" + "p@s!y",
		"p@s!y (p@s!)":                    mask + "y (" + mask + ")",
		"about me, ab":                    "about me, ab",
		"x12345678y":                      "x" + mask + "y",
		"feedback of receivefeedback":     mask + " of receivefeedback",
	} {
		equal(t, text, m.Replace(text), want)
	}
	if got := m.WithoutWords().Replace("tiger feedback 12345678"); got != "tiger feedback "+mask {
		t.Error(got)
	}
	if NewMasker([]string{"tiger"}).WithoutWords() != nil || NewMasker([]string{"abc", "null"}, "me") != nil {
		t.Error("texts in every text are masked")
	}
}

// TestMaskerOverlap checks that overlapping secrets are masked completely, in any order.
func TestMaskerOverlap(t *testing.T) {
	t.Parallel()
	for _, texts := range [][]string{{"abcdefgh", "efghijkl"}, {"efghijkl", "abcdefgh"}, {"abcd", "abcdefghijkl"}, {"", "abcdefghijkl", "fgh"}} {
		if got, want := NewMasker(texts).Replace("<abcdefghijkl>abcd."), "<"+mask+">"; !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q", texts, got)
		}
	}
	if NewMasker([]string{""}) != nil {
		t.Error("nothing is masked")
	}
}

func TestMaskerLeavesTheRest(t *testing.T) {
	t.Parallel()
	m := NewMasker([]string{"s3cretsecret"})
	for _, text := range []string{"", `\`, `\u`, `\u00`, `\ud83d`, `\ud83dx`, "%", "%4", "%zz", "&", "&;", "&#;", "&#x;", "&#xffffffff;", "&unknown;", `s3cret\u0000secret`, "s3cret secret",
		`{"a":"\"\\\/","b":"%73 &amp; &#115;"}`, strings.Repeat(`\\`, 1000), strings.Repeat("&amp;", 1000)} {
		equal(t, text, m.Replace(text), text)
	}
	if (*Masker)(nil).Replace("s3cretsecret") != "s3cretsecret" || NewMasker(nil) != nil {
		t.Error("a masker of nothing masks")
	}
	if got := NewMasker([]string{"12345678", "1234567890"}).Replace(`1234567890 \u0031\u0032345678\u0039\u0030 12345678`); got != "****** ****** ******" {
		t.Errorf("%q", got)
	}
}

func FuzzMasker(f *testing.F) {
	f.Add(`you sent s3\/crets and %73%33/crets & s3&#x2f;crets`)
	m := NewMasker([]string{"s3/crets"})
	f.Fuzz(func(t *testing.T, s string) {
		masked := m.Replace(s)
		if strings.Contains(masked, "s3/crets") {
			t.Fatalf("%q", masked)
		}
		for _, e := range escapes {
			if strings.Contains(e.unescape(masked), "s3/crets") {
				t.Fatalf("%q means %q", masked, e.unescape(masked))
			}
		}
	})
}
