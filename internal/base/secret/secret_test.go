package secret

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

const text = "hunter2-very-secret"

// must ends the test if err is not nil. heraldtest.Must is not available here: heraldtest imports this package.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// showsSecret reports whether s contains the secret in any form that a formatting verb could produce.
func showsSecret(s string) bool {
	return strings.Contains(s, text) || strings.Contains(strings.ToLower(s), fmt.Sprintf("%x", text)) || strings.Contains(s, strings.Trim(fmt.Sprint([]byte(text)), "[]"))
}

func TestNeverShown(t *testing.T) {
	t.Parallel()
	s := New(text)
	type exported struct {
		S    Secret
		P    *Secret
		M    map[string]Secret
		List []Secret
		Any  any
	}
	type hidden struct {
		s    Secret
		p    *Secret
		m    map[string]Secret
		list []Secret
		any  any
	}
	values := map[string]any{
		"secret": s, "pointer": &s, "list": []Secret{s}, "map": map[string]Secret{"a": s},
		"exported": exported{s, &s, map[string]Secret{"a": s}, []Secret{s}, s}, "hidden": hidden{s, &s, map[string]Secret{"a": s}, []Secret{s}, s},
		"pointer to hidden": &hidden{s, &s, map[string]Secret{"a": s}, []Secret{s}, s},
	}
	for name, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%t", "%p", "%c", "%U", "%e", "%10.3s", "%-20v", "%!"} {
			if got := fmt.Sprintf(verb, v); showsSecret(got) {
				t.Errorf("%s with %s: %s", name, verb, got)
			}
		}
		if got, err := json.Marshal(v); err != nil || showsSecret(string(got)) {
			t.Errorf("%s as JSON: %s, %v", name, got, err)
		}
		var out bytes.Buffer
		for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
			slog.New(h).Info("x", "v", v, slog.Group("g", "v", v))
		}
		if showsSecret(out.String()) {
			t.Errorf("%s logged: %s", name, out.String())
		}
		if got := fmt.Errorf("do it: %v: %w", v, errors.New("x")).Error(); showsSecret(got) {
			t.Errorf("%s in an error: %s", name, got)
		}
	}
	for verb, want := range map[string]string{"%v": mask, "%+v": mask, "%#v": mask, "%s": mask, "%q": mask, "%x": mask, "%d": mask} {
		equal(t, verb, fmt.Sprintf(verb, s), want)
	}
	if got, err := json.Marshal(s); err != nil || string(got) != `"******"` {
		t.Errorf("JSON: %s, %v", got, err)
	}
	if got, err := s.MarshalText(); err != nil || string(got) != mask {
		t.Errorf("text: %s, %v", got, err)
	}
	if got, err := xml.Marshal(s); err != nil || showsSecret(string(got)) {
		t.Errorf("XML: %s, %v", got, err)
	}
	if s.String() != mask || s.GoString() != mask || s.LogValue().String() != mask {
		t.Error("not masked")
	}
}

func TestSecret(t *testing.T) {
	t.Parallel()
	s := New(text)
	if s.Reveal() != text || s.IsZero() || !New("").IsZero() || !(Secret{}).IsZero() || (Secret{}).Reveal() != "" {
		t.Error("reveal or zero")
	}
	for given, want := range map[string]bool{text: true, "": false, text + "x": false, text[1:]: false, strings.ToUpper(text): false} {
		equal(t, fmt.Sprintf("Compare(%q)", given), s.Compare(given), want)
	}
	if !(Secret{}).Compare("") || (Secret{}).Compare("x") {
		t.Error("the empty secret")
	}
	equal(t, "the mask of a shorter secret", New(text[:3]).String(), s.String())
}
