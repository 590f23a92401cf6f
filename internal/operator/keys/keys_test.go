package keys

import (
	"errors"
	"strings"
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
	var own, others strings.Builder
	heraldtest.Must(t, errors.Join(k.Write(&own), other.Write(&others)))
	heraldtest.Must(t, checkReadable(k, secret.New(own.String()), nil))
	for name, written := range map[string]string{"another keyset": others.String(), "cut short": own.String()[:20], "nothing": ""} {
		heraldtest.Fails(t, name, checkReadable(k, secret.New(written), nil), "nothing was changed")
	}
}
