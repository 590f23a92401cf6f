package policy

import "testing"

// TestParseStored: invalid fields of a stored policy are ignored.
func TestParseStored(t *testing.T) {
	t.Parallel()
	for stored, want := range map[string]string{
		`{}`: "", `{"onUnknown": "hold"}`: "hold", `{"onUnknown": "resend", "other": [1]}`: "resend",
		`{"onUnknown": "never"}`: "", `{"onUnknown": 3}`: "", `[1]`: "", `null`: "", `"hold"`: "", `{"onUnknown": null}`: "",
	} {
		if got := ParseStored([]byte(stored)); got.OnUnknown != want {
			t.Errorf("%s reads %q, want %q", stored, got.OnUnknown, want)
		}
	}
}
