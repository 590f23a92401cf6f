package keys

import (
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestCheckReadable checks that a keyset that cannot be read back is refused.
func TestCheckReadable(t *testing.T) {
	t.Parallel()
	k, err := secret.Create()
	heraldtest.Must(t, err)
	k, _, err = k.Add()
	heraldtest.Must(t, err)
	other, err := secret.Create()
	heraldtest.Must(t, err)
	own, err := k.Encode(nil)
	heraldtest.Must(t, err)
	others, err := other.Encode(nil)
	heraldtest.Must(t, err)
	heraldtest.Must(t, checkReadable(k, own, nil))
	for name, written := range map[string]string{"another keyset": others.Reveal(), "cut short": own.Reveal()[:20], "nothing": ""} {
		heraldtest.Fails(t, name, checkReadable(k, secret.New(written), nil), "nothing was changed")
	}
}
