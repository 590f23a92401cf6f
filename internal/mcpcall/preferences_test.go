package mcpcall

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestReadPreferences checks that each member of an agent's preferences is read on its own, and that invalid members
// are reported and have no effect.
func TestReadPreferences(t *testing.T) {
	t.Parallel()
	all := []string{"kinds", "batchSize", "maxPerSecond", "pauseUntil"}
	noon := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		said string
		want *Preferences
	}{
		"all": {`{"kinds": ["NewFeedback", "FeedbackRevoked", "NewFeedback"], "batchSize": 20, "maxPerSecond": 0.5, "pauseUntil": "2026-11-23T13:00:00+01:00"}`,
			&Preferences{Kinds: []string{"FeedbackRevoked", "NewFeedback"}, BatchSize: 20, MaxPerSecond: 0.5, PauseUntil: noon}},
		"nothing":         {`{}`, &Preferences{}},
		"later versions'": {`{"language": {"a": [[1]]}, "batchSize": 1}`, &Preferences{BatchSize: 1}},
		"no kinds":        {`{"kinds": []}`, &Preferences{Kinds: []string{}}},
		"whole number":    {`{"batchSize": 5.0e1}`, &Preferences{BatchSize: 50}},
		"beyond the year": {`{"pauseUntil": "9999-12-31T23:59:59Z"}`,
			&Preferences{PauseUntil: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}},

		"unknown kind":     {`{"kinds": ["NewFeedback", "Praise"], "batchSize": 2}`, &Preferences{BatchSize: 2, NotUnderstood: []string{"kinds"}}},
		"kinds of AgentUp": {`{"kinds": ["AgentUpdated"]}`, &Preferences{NotUnderstood: []string{"kinds"}}},
		"numbers as kinds": {`{"kinds": [1]}`, &Preferences{NotUnderstood: []string{"kinds"}}},
		"text":             {`{"kinds": "NewFeedback", "batchSize": "5", "maxPerSecond": "1", "pauseUntil": "tomorrow"}`, &Preferences{NotUnderstood: all}},
		"null":             {`{"kinds": null, "batchSize": null, "maxPerSecond": null, "pauseUntil": null}`, &Preferences{NotUnderstood: all}},
		"objects":          {`{"kinds": {}, "batchSize": {}, "maxPerSecond": [], "pauseUntil": 1800000000}`, &Preferences{NotUnderstood: all}},
		"zero":             {`{"batchSize": 0, "maxPerSecond": 0}`, &Preferences{NotUnderstood: []string{"batchSize", "maxPerSecond"}}},
		"negative":         {`{"batchSize": -1, "maxPerSecond": -0.1}`, &Preferences{NotUnderstood: []string{"batchSize", "maxPerSecond"}}},
		"too much":         {`{"batchSize": 51, "maxPerSecond": 1e400}`, &Preferences{NotUnderstood: []string{"batchSize", "maxPerSecond"}}},
		"too little":       {`{"batchSize": 0.5, "maxPerSecond": 1e-400}`, &Preferences{NotUnderstood: []string{"batchSize", "maxPerSecond"}}},
		"year 10000":       {`{"pauseUntil": "10000-01-01T00:00:00Z"}`, &Preferences{NotUnderstood: []string{"pauseUntil"}}},
		"no zone":          {`{"pauseUntil": "2026-11-23T12:00:00"}`, &Preferences{NotUnderstood: []string{"pauseUntil"}}},

		"null altogether": {`null`, &Preferences{Unreadable: true}},
		"a list":          {`[]`, &Preferences{Unreadable: true}},
		"said twice":      {`{"batchSize": 1, "batchSize": 2}`, &Preferences{Unreadable: true}},
		"deep":            {`{"a": ` + strings.Repeat("[", 20) + strings.Repeat("]", 20) + `}`, &Preferences{Unreadable: true}},
		"huge list":       {`{"kinds": ["NewFeedback"` + strings.Repeat(`, "NewFeedback"`, 1000) + `]}`, &Preferences{Unreadable: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, err := readAnswer(json.RawMessage(`{"content": [], "_meta": {"other": 1, "`+PreferencesKey+`": `+c.said+`}}`), nil)
			if err != nil || answer.Unreadable {
				t.Fatal(answer, err)
			}
			got := answer.Preferences
			if got != nil {
				if got.PauseUntil.Equal(c.want.PauseUntil) {
					got.PauseUntil = c.want.PauseUntil
				}
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
	for _, nothing := range []string{`{"content": []}`, `{"content": [], "_meta": null}`, `{"content": [], "_meta": 7}`, `{"content": [], "_meta": {}}`,
		`{"content": [], "_meta": {"preferences": {"batchSize": 1}}}`} {
		if answer, err := readAnswer(json.RawMessage(nothing), nil); err != nil || answer.Preferences != nil || answer.Unreadable {
			t.Errorf("%s: %+v, %v", nothing, answer, err)
		}
	}
}

func FuzzPreferences(f *testing.F) {
	for _, seed := range []string{`{}`, `{"kinds": ["NewFeedback"], "batchSize": 20, "maxPerSecond": 0.5, "pauseUntil": "2026-11-23T13:00:00+01:00"}`,
		`{"kinds": [[]], "maxPerSecond": 1e400, "pauseUntil": "9999-12-31T23:59:59.999999999-23:59"}`, `null`, `[`, `{"batchSize":1,"batchSize":2}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		p := readPreferences([]byte(`{"` + PreferencesKey + `": ` + string(said) + `}`))
		if p == nil {
			return
		}
		if p.BatchSize < 0 || p.BatchSize > MaxBatch || p.MaxPerSecond < 0 || math.IsInf(p.MaxPerSecond, 0) || math.IsNaN(p.MaxPerSecond) ||
			len(p.Kinds) > 4 || len(p.NotUnderstood) > 4 || !slices.IsSorted(p.Kinds) ||
			p.Unreadable && !reflect.DeepEqual(*p, Preferences{Unreadable: true}) {
			t.Errorf("%s became %+v", said, p)
		}
	})
}
