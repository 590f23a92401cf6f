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

// PreferencesKey is the member of an answer's _meta that holds the agent's preferences.
const PreferencesKey = "io.agentherald/preferences"

const (
	// maxPreferencesBytes and maxPreferencesDepth bound the member. A larger or deeper one is Unreadable.
	maxPreferencesBytes = 4 << 10
	maxPreferencesDepth = 8
	// MaxBatch is the maximum of batchSize.
	MaxBatch = 50
)

// Preferences are an agent's wishes about its deliveries, sent in an answer. A zero field expresses no wish. If all
// fields are zero, the agent withdraws its earlier wishes.
type Preferences struct {
	Kinds        []string // the only kinds it wants; nil: all, empty: none
	BatchSize    int      // 1 to MaxBatch; 0: not given
	MaxPerSecond float64  // finite; 0: not given
	PauseUntil   time.Time

	// NotUnderstood names the members with invalid values; they are ignored. Unreadable means that the whole member
	// could not be parsed; then nothing changes.
	NotUnderstood []string
	Unreadable    bool
}

// readPreferences parses the preferences in an answer's _meta. It returns nil if the answer has no preferences. Unknown
// members are ignored, because later versions may define them.
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
		if stated := object.Get(member.name); stated != nil && !member.read(stated.Data) {
			p.NotUnderstood = append(p.NotUnderstood, member.name)
		}
	}
	return p
}

// readKinds parses a list of kinds. It rejects the whole list if this version does not know one of them, so that no
// event is withheld by mistake.
func (p *Preferences) readKinds(stated any) bool {
	list, ok := stated.([]*strictjson.Value)
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

func (p *Preferences) readBatchSize(stated any) bool {
	n, ok := readNumber(stated)
	if !ok || n != math.Trunc(n) || n < 1 || n > MaxBatch {
		return false
	}
	p.BatchSize = int(n)
	return true
}

func (p *Preferences) readRate(stated any) bool {
	n, ok := readNumber(stated)
	if !ok || n <= 0 {
		return false
	}
	p.MaxPerSecond = n
	return true
}

// readPause parses any RFC 3339 time. The caller, which has the clock, limits how far in the future it may be.
func (p *Preferences) readPause(stated any) bool {
	words, ok := stated.(string)
	until, err := time.Parse(time.RFC3339, words)
	if !ok || err != nil {
		return false
	}
	p.PauseUntil = until
	return true
}

// readNumber parses a finite number.
func readNumber(stated any) (float64, bool) {
	literal, ok := stated.(json.Number)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseFloat(literal.String(), 64)
	return n, err == nil
}
