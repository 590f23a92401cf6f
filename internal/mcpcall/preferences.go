package mcpcall

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/strictjson"
)

// PreferencesKey is the member of an answer's _meta in which an agent says what it wants.
const PreferencesKey = "io.agentherald/preferences"

const (
	// maxPreferencesBytes and maxPreferencesDepth bound the member: longer or deeper ones are not read.
	maxPreferencesBytes = 4 << 10
	maxPreferencesDepth = 8
	// MaxBatch is the largest batchSize.
	MaxBatch = 50
)

// Preferences are what an agent asks for in an answer. A zero field asks for nothing; all zero, it takes back what it
// asked for before.
type Preferences struct {
	Kinds        []string // it wants no others; nil: all, empty: none
	BatchSize    int      // 1 to MaxBatch; 0: it does not say
	MaxPerSecond float64  // finite; 0: it does not say
	PauseUntil   time.Time

	// NotUnderstood are the members with values that mean nothing, which count as if they were not there. Unreadable is
	// the whole that cannot be read, which changes nothing.
	NotUnderstood []string
	Unreadable    bool
}

// readPreferences reads them from an answer's _meta; nil: it says nothing of them. Members of other names are passed
// over: a later version may know them.
func readPreferences(meta json.RawMessage) *Preferences {
	var members struct {
		Raw json.RawMessage `json:"io.agentherald/preferences"`
	}
	if len(meta) == 0 || json.Unmarshal(meta, &members) != nil || members.Raw == nil {
		return nil
	}
	p := &Preferences{Unreadable: true}
	if len(members.Raw) > maxPreferencesBytes {
		return p
	}
	value, fault := strictjson.Parse(members.Raw, strictjson.Options{MaxDepth: maxPreferencesDepth})
	if fault != nil {
		return p
	}
	object, ok := value.Object()
	if !ok {
		return p
	}

	p.Unreadable = false
	for _, member := range []struct {
		name string
		read func(any) bool
	}{
		{"kinds", p.readKinds}, {"batchSize", p.readBatchSize}, {"maxPerSecond", p.readRate},
		{"pauseUntil", p.readPause},
	} {
		if said := object.Get(member.name); said != nil && !member.read(said.Data) {
			p.NotUnderstood = append(p.NotUnderstood, member.name)
		}
	}
	return p
}

// readKinds takes a list of kinds that this version knows; of an agent that names another one, none is left out.
func (p *Preferences) readKinds(said any) bool {
	list, ok := said.([]*strictjson.Value)
	known := []string{string(job.KindNewFeedback), string(job.KindFeedbackRevoked), string(job.KindResponseAppended),
		string(job.KindValidationResponse)}
	kinds := make([]string, 0, len(known))
	for _, v := range list {
		kind, isText := v.Data.(string)
		if !isText || !slices.Contains(known, kind) {
			return false
		}
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	if ok {
		slices.Sort(kinds)
		p.Kinds = kinds
	}
	return ok
}

func (p *Preferences) readBatchSize(said any) bool {
	n, ok := readNumber(said)
	if !ok || n != math.Trunc(n) || n < 1 || n > MaxBatch {
		return false
	}
	p.BatchSize = int(n)
	return true
}

func (p *Preferences) readRate(said any) bool {
	n, ok := readNumber(said)
	if !ok || n <= 0 {
		return false
	}
	p.MaxPerSecond = n
	return true
}

// readPause takes any time of RFC 3339: how far ahead it may lie is the caller's to say, who knows what time it is.
func (p *Preferences) readPause(said any) bool {
	words, ok := said.(string)
	until, err := time.Parse(time.RFC3339, words)
	if !ok || err != nil {
		return false
	}
	p.PauseUntil = until
	return true
}

// readNumber is a finite number.
func readNumber(said any) (float64, bool) {
	literal, ok := said.(json.Number)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseFloat(literal.String(), 64)
	return n, err == nil
}
