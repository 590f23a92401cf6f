package app

import (
	"context"
	"maps"
	"slices"
)

// logMissingKeys logs which stored tokens cannot be sent because the keyset lacks their key. The worker still starts,
// because deliveries to other agents do not need them.
func (a *assembly) logMissingKeys(ctx context.Context) {
	uses, err := a.records.SealingKeys(ctx)
	if err != nil {
		a.log.Warn("it is unknown whether the keyset opens the stored secrets", "error", err)
		return
	}
	for _, id := range slices.Sorted(maps.Keys(uses)) {
		if !a.keys.Has(id) {
			a.log.Error("stored tokens cannot be opened, and deliveries that need them are held: the key that sealed "+
				"them is not in HERALD_KEYSET; restore the keyset with this key",
				"key", id, "tokens", uses[id])
		}
	}
}
