package erc8004

import (
	"bytes"
	"encoding/json"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/math"
)

// deployedABI reads the published ABI of a registry.
func deployedABI(t testing.TB, name string) abi.ABI {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	heraldtest.Must(t, err)
	// The file contains either the ABI itself or a compiler artifact with an abi field.
	var artifact struct{ ABI json.RawMessage }
	if json.Unmarshal(b, &artifact) == nil && artifact.ABI != nil {
		b = artifact.ABI
	}
	parsed, err := abi.JSON(bytes.NewReader(b))
	heraldtest.Must(t, err)
	return parsed
}

func TestCallsFollowTheDeployedABIs(t *testing.T) {
	t.Parallel()
	identity, reputation, validation := deployedABI(t, "IdentityRegistry"), deployedABI(t, "ReputationRegistry"), deployedABI(t, "ValidationRegistry")
	id, client := new(big.Int).Lsh(big.NewInt(3), 254), common.HexToAddress("0xc1")
	must := func(b []byte, err error) []byte {
		t.Helper()
		heraldtest.Must(t, err)
		return b
	}
	for _, test := range []struct {
		name string
		abi  abi.ABI
		args []any
		got  []byte
	}{
		{"tokenURI", identity, []any{id}, must(PackTokenURI(id))},
		{"ownerOf", identity, []any{id}, must(PackOwnerOf(id))},
		{"getIdentityRegistry", reputation, nil, PackGetIdentityRegistry()},
		{"getIdentityRegistry", validation, nil, PackGetIdentityRegistry()},
		{"getLastIndex", reputation, []any{id, client}, must(PackGetLastIndex(id, client))},
		{"readFeedback", reputation, []any{id, client, uint64(1 << 63)}, must(PackReadFeedback(id, client, 1<<63))},
	} {
		if want := must(test.abi.Pack(test.name, test.args...)); !bytes.Equal(test.got, want) {
			t.Errorf("%s: %x, want %x", test.name, test.got, want)
		}
	}
	for _, bad := range []*big.Int{nil, big.NewInt(-1), new(big.Int).Lsh(big.NewInt(1), 256)} {
		if _, err := PackTokenURI(bad); err == nil {
			t.Errorf("id %v was packed", bad)
		}
	}

	out := must(identity.Methods["tokenURI"].Outputs.Pack("data:,\x00\xff"))
	if got, err := UnpackTokenURI(out); err != nil || got != "data:,\x00\xff" {
		t.Errorf("tokenURI %q, %v", got, err)
	}
	nonexistent := identity.Errors["ERC721NonexistentToken"]
	if revert := append(nonexistent.ID[:4:4], id.FillBytes(make([]byte, 32))...); !IsNonexistentToken(revert) {
		t.Errorf("%x is not recognised", revert)
	}
	if IsNonexistentToken(nil) || IsNonexistentToken(make([]byte, 36)) {
		t.Error("other revert data is recognised")
	}
}

func TestReadFeedbackOfEveryRegistry(t *testing.T) {
	t.Parallel()
	pack := func(types string, values ...any) []byte {
		var args abi.Arguments
		for _, name := range strings.Split(types, ",") {
			typ, err := abi.NewType(name, "", nil)
			heraldtest.Must(t, err)
			args = append(args, abi.Argument{Type: typ})
		}
		b, err := args.Pack(values...)
		heraldtest.Must(t, err)
		return b
	}
	value := big.NewInt(-9977)
	for _, test := range []struct {
		ret  []byte
		want StoredFeedback
	}{
		{pack("int128,uint8,string,string,bool", value, uint8(2), "a", "b", true), StoredFeedback{Value: value, ValueDecimals: 2, Tag1: "a", Tag2: "b", Revoked: true}},
		{pack("int128,uint8,string,string,bool", big.NewInt(128), uint8(0), "", "", false), StoredFeedback{Value: big.NewInt(128)}},
		{pack("uint8,string,string,bool", uint8(90), "a", "b", true), StoredFeedback{Value: big.NewInt(90), LegacyScore: true, Tag1: "a", Tag2: "b", Revoked: true}},
		{pack("uint8,bytes32,bytes32,bool", uint8(90), [32]byte{'a'}, [32]byte{}, true), StoredFeedback{Value: big.NewInt(90), LegacyScore: true, Tag1: "a", Revoked: true}},
	} {
		got, err := UnpackReadFeedback(test.ret)
		heraldtest.Must(t, err)
		heraldtest.Equal(t, "the feedback that was read", got, test.want)
	}
	for _, bad := range [][]byte{nil, make([]byte, 31), make([]byte, 33), bytes.Repeat([]byte{0xff}, 160)} {
		if got, err := UnpackReadFeedback(bad); err == nil {
			t.Errorf("%d bytes gave %+v", len(bad), got)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	var stored []byte
	for _, word := range []int64{-9977, 2, 160, 160, 1, 0} {
		stored = append(stored, math.U256Bytes(big.NewInt(word))...)
	}
	f.Add(stored)
	f.Add(make([]byte, 128))
	f.Add(make([]byte, 256))
	f.Fuzz(func(t *testing.T, ret []byte) {
		_, _ = UnpackGetIdentityRegistry(ret)
		_, _ = UnpackGetLastIndex(ret)
		pack := func(of []abi.Type, values ...any) []byte {
			args := make(abi.Arguments, len(of))
			for i, t := range of {
				args[i].Type = t
			}
			b, err := args.Pack(values...)
			heraldtest.Must(t, err)
			return b
		}
		if uri, err := UnpackTokenURI(ret); err == nil {
			again, err := UnpackTokenURI(pack([]abi.Type{stringType}, uri))
			if err != nil || again != uri || len(uri) > len(ret) {
				t.Fatalf("%q becomes %q, %v", uri, again, err)
			}
		}
		// No registry has 128 decimals, which would look like the offset of the form of 2025.
		if s, err := UnpackReadFeedback(ret); err == nil && !s.LegacyScore && s.ValueDecimals != 4*wordSize {
			of := []abi.Type{int256Type, uint8Type, stringType, stringType, boolType}
			again, err := UnpackReadFeedback(pack(of, s.Value, s.ValueDecimals, s.Tag1, s.Tag2, s.Revoked))
			if err != nil || !reflect.DeepEqual(again, s) || !bytes.Equal(math.U256Bytes(new(big.Int).Set(s.Value)), ret[:wordSize]) {
				t.Fatalf("%+v becomes %+v, %v", s, again, err)
			}
		}
	})
}

func TestKnownDeployments(t *testing.T) {
	t.Parallel()
	base, ok := KnownDeployment(8453)
	if !ok || base.Reputation != common.HexToAddress("0x8004BAa17C55a88189AE136b182e5fdA19dE9b63") {
		t.Errorf("Base: %+v", base)
	}
	sepolia, ok := KnownDeployment(11155111)
	old, okOld := LegacyDeployment(11155111)
	if !ok || !okOld || sepolia == old || sepolia == base {
		t.Errorf("Sepolia: %+v, %+v", sepolia, old)
	}
	if got, ok := ListedRegistries(11155111); !ok || got.Default() != sepolia || !slices.Equal(got.Reputation,
		[]common.Address{sepolia.Reputation, old.Reputation}) {
		t.Errorf("listed on Sepolia: %+v", got)
	}
	if got, ok := ListedRegistries(998); ok || !reflect.DeepEqual(got, Registries{}) {
		t.Errorf("listed where all is legacy: %+v", got)
	}
	if _, ok := KnownDeployment(31337); ok {
		t.Error("a development chain has known registries")
	}
}
