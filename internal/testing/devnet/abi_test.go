package devnet

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/accounts/abi/bind/v2"

	"github.com/agentherald/herald/internal/testing/devnet/registry"
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
	for name, binding := range map[string]*bind.MetaData{
		"IdentityRegistry":   &registry.IdentityRegistryMetaData,
		"ReputationRegistry": &registry.ReputationRegistryMetaData,
		"ValidationRegistry": &registry.ValidationRegistryMetaData,
	} {
		published := readABI(t, filepath.Join("..", "..", "erc8004", "testdata", name+".json"))
		ours := readABI(t, filepath.Join("contracts", name+".abi"))
		bound, err := abi.JSON(strings.NewReader(binding.ABI))
		heraldtest.Must(t, err)
		if len(bound.Methods) != len(ours.Methods) || len(bound.Events) != len(ours.Events) || len(bound.Errors) != len(ours.Errors) {
			t.Errorf("%s: the bindings are not of the committed ABI; run make contracts", name)
		}
		if bytecode, err := os.ReadFile(filepath.Join("contracts", name+".bin")); err != nil || "0x"+strings.TrimSpace(string(bytecode)) != binding.Bin {
			t.Errorf("%s: the bindings are not of the committed bytecode (%v); run make contracts", name, err)
		}
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
