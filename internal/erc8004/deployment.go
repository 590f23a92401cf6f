package erc8004

import (
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/common"
)

// ParseAddress parses an address: 0x and 40 hex digits. It refuses the zero address, and an address in mixed case with
// a wrong checksum (EIP-55). problem is empty if s is valid. Otherwise it is a predicate about s, such as "is the zero
// address".
func ParseAddress(s string) (_ common.Address, problem string) {
	digits, prefixed := strings.CutPrefix(s, "0x")
	a := common.HexToAddress(s)
	switch {
	case !prefixed || !common.IsHexAddress(s):
		return common.Address{}, "must be an address: 0x and 40 hex digits"
	case digits != strings.ToLower(digits) && digits != strings.ToUpper(digits) && a.Hex() != s:
		return common.Address{}, "has a wrong checksum (EIP-55): a digit may be wrong"
	case a == common.Address{}:
		return common.Address{}, "is the zero address"
	}
	return a, ""
}

// Deployment contains the addresses of registries that belong together on one chain. The address of a missing registry
// is zero.
type Deployment struct {
	Identity   common.Address
	Reputation common.Address
	Validation common.Address
}

// Contracts returns the addresses that are not zero, sorted and each once.
func (d Deployment) Contracts() []common.Address {
	list := []common.Address{d.Identity, d.Reputation, d.Validation}
	slices.SortFunc(list, common.Address.Cmp)
	return slices.DeleteFunc(slices.Compact(list), func(a common.Address) bool { return a == common.Address{} })
}

// List returns the addresses of Contracts in lower case.
func (d Deployment) List() (list []string) {
	for _, a := range d.Contracts() {
		list = append(list, strings.ToLower(a.Hex()))
	}
	return list
}

// Registries contains the registries of one chain whose events Herald accepts. Anyone can deploy a contract that emits
// the same events, so Herald ignores the events of other contracts. The first of each kind is the default.
type Registries struct {
	Identity   []common.Address
	Reputation []common.Address
	Validation []common.Address
}

// Default returns the first registry of each kind, for jobs without registries. A kind without registries has the zero
// address.
func (r Registries) Default() Deployment {
	usual := func(listed []common.Address) common.Address {
		if len(listed) == 0 {
			return common.Address{}
		}
		return listed[0]
	}
	return Deployment{Identity: usual(r.Identity), Reputation: usual(r.Reputation), Validation: usual(r.Validation)}
}

// Registries returns the addresses of the deployment as lists.
func (d Deployment) Registries() Registries {
	list := func(a common.Address) []common.Address {
		if a == (common.Address{}) {
			return nil
		}
		return []common.Address{a}
	}
	return Registries{Identity: list(d.Identity), Reputation: list(d.Reputation), Validation: list(d.Validation)}
}

// ListedRegistries returns the registries of KnownDeployment followed by those of LegacyDeployment. known is false, and
// the lists are empty, if the chain is not one of KnownChains.
func ListedRegistries(chainID uint64) (_ Registries, known bool) {
	d, known := KnownDeployment(chainID)
	r, old := d.Registries(), Registries{}
	if legacy, ok := LegacyDeployment(chainID); ok && known {
		old = legacy.Registries()
	}
	return Registries{append(r.Identity, old.Identity...), append(r.Reputation, old.Reputation...), append(r.Validation,
		old.Validation...)}, known
}

// KnownDeployment returns the registries of the current ABI on a chain. All mainnets have the same addresses, and so
// have all testnets. It returns false if the chain is not one of KnownChains.
func KnownDeployment(chainID uint64) (Deployment, bool) {
	chain, known := FindChain(chainID)
	switch {
	case !known:
		return Deployment{}, false
	case chain.Testnet:
		return Deployment{
			Identity:   common.HexToAddress("0x8004A818BFB912233c491871b3d84c89A494BD9e"),
			Reputation: common.HexToAddress("0x8004B663056A597Dffe9eCcC1965A193B7388713"),
			Validation: common.HexToAddress("0x8004Cb1BF31DAf7788923b405b754f57acEB4272"),
		}, true
	default:
		return Deployment{
			Identity:   common.HexToAddress("0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"),
			Reputation: common.HexToAddress("0x8004BAa17C55a88189AE136b182e5fdA19dE9b63"),
			Validation: common.HexToAddress("0x8004Cc8439f36fd5F9F049D9fF86523Df6dAAB58"),
		}, true
	}
}

// LegacyDeployment returns the registries of October 2025 on a testnet, which emit the first form of NewFeedback (uint8
// score, bytes32 tags). A job must name them, because they are never the default. LegacyDeployment returns false if the
// chain has none.
func LegacyDeployment(chainID uint64) (Deployment, bool) {
	of := func(identity, reputation, validation string) (Deployment, bool) {
		return Deployment{
			Identity:   common.HexToAddress(identity),
			Reputation: common.HexToAddress(reputation),
			Validation: common.HexToAddress(validation),
		}, true
	}
	switch chainID {
	case 11155111: // Ethereum Sepolia
		return of("0x8004a6090Cd10A7288092483047B097295Fb8847", "0x8004B8FD1A363aa02fDC07635C0c5F94f6Af5B7E",
			"0x8004CB39f29c09145F24Ad9dDe2A108C1A2cdfC5")
	case 84532: // Base Sepolia
		return of("0x8004AA63c570c570eBF15376c0dB199918BFe9Fb", "0x8004bd8daB57f14Ed299135749a5CB5c42d341BF",
			"0x8004C269D0A5647E51E121FeB226200ECE932d55")
	case 59141: // Linea Sepolia
		return of("0x8004aa7C931bCE1233973a0C6A667f73F66282e7", "0x8004bd8483b99310df121c46ED8858616b2Bba02",
			"0x8004c44d1EFdd699B2A26e781eF7F77c56A9a4EB")
	case 80002: // Polygon Amoy
		return of("0x8004ad19E14B9e0654f73353e8a0B600D46C2898", "0x8004B12F4C2B42d00c46479e859C92e39044C930",
			"0x8004C11C213ff7BaD36489bcBDF947ba5eee289B")
	case 296: // Hedera testnet
		return of("0x4c74ebd72921d537159ed2053f46c12a7d8e5923", "0xc565edcba77e3abeade40bfd6cf6bf583b3293e0",
			"0x18df085d85c586e9241e0cd121ca422f571c2da6")
	case 998: // HyperEVM testnet
		return of("0x8004A9560C0edce880cbD24Ba19646470851C986", "0x8004b490779A65D3290a31fD96471122050dF671",
			"0x8004C86198fdB8d8169c0405D510EC86cc7B0551")
	case 324705682: // SKALE Base Sepolia
		return of("0x4fa7900596c9830664406d3796952c59ec4133d9", "0x9b9d23a47697691ef1016906d1f8ddfc009e6a69",
			"0x34ae1196b1609e01ebc90b75c802b2ea87203f13")
	}
	return Deployment{}, false
}
