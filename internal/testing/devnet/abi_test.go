package devnet

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/ethereum/go-ethereum/accounts/abi"

	"github.com/agentherald/herald/internal/testing/devnet/contracts"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func readABI(t *testing.T, path string) abi.ABI {
	t.Helper()
	b, err := os.ReadFile(path)
	heraldtest.Must(t, err)
	parsed, err := abi.JSON(bytes.NewReader(b))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return parsed
}

// TestRegistriesAreASubsetOfThePublishedABIs: the published ABIs contain every function and event of the registries of
// devnet, in the same form.
func TestRegistriesAreASubsetOfThePublishedABIs(t *testing.T) {
	t.Parallel()
	for name, contract := range map[string]contracts.Contract{
		"IdentityRegistry": contracts.Identity(), "ReputationRegistry": contracts.Reputation(), "ValidationRegistry": contracts.Validation(),
	} {
		published, ours := readABI(t, filepath.Join("..", "..", "erc8004", "testdata", name+".json")), contract.ABI
		theirs := map[string]string{}
		for _, m := range published.Methods {
			theirs[m.Sig] = m.String()
		}
		for _, m := range ours.Methods {
			if theirs[m.Sig] != m.String() {
				t.Errorf("%s: %s, published %q", name, m.String(), theirs[m.Sig])
			}
		}
		for key, e := range ours.Events {
			if other, ok := published.Events[key]; !ok || other.String() != e.String() || other.ID != e.ID {
				t.Errorf("%s: %s, published %s", name, e.String(), other.String())
			}
		}
		for key, e := range ours.Errors {
			if other, ok := published.Errors[key]; !ok || other.String() != e.String() || other.ID != e.ID {
				t.Errorf("%s: %s, published %s", name, e.String(), other.String())
			}
		}
	}
}
