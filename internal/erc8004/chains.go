package erc8004

import (
	"slices"
	"time"
)

// Chain describes a chain. FindChain knows the chains on which the authors of the reference contracts deployed the
// registries.
type Chain struct {
	ID      uint64 // EIP-155
	Name    string
	Testnet bool
	// BlockTime is the usual time between two blocks, for use until the time is measured; 0 if it is unknown.
	BlockTime time.Duration
	// Confirmations is the default distance from the head of the chain, as a Depth.Time, at which an event is confirmed
	// and may be delivered.
	Confirmations time.Duration
	// Quiet is true if the chain makes blocks only when there are transactions. An old head then does not mean that a
	// node is behind.
	Quiet bool
	// Untagged is true if nodes support neither the block tag Safe nor Finalized.
	Untagged bool
	// Explorer is the host, and the path if there is one, of a block explorer with pages /tx/, /block/ and /address/
	// (EIP-3091); empty: none is known.
	Explorer string
}

// Values of Chain.Confirmations. docs/reference/chains.md explains them.
const (
	beaconDepth    = 72 * time.Second // six slots of Ethereum
	gnosisDepth    = 30 * time.Second // six slots of Gnosis
	polygonDepth   = 64 * time.Second // 32 blocks
	bscDepth       = 12 * time.Second // twice its finality
	sequencedDepth = 6 * time.Second  // a single sequencer orders the blocks, or blocks are final within seconds
	unknownDepth   = 36 * time.Second // three blocks of the slowest known chain
)

const ms = time.Millisecond

// knownChains are the chains in the README and the deployment scripts of the reference contracts.
var knownChains = [...]Chain{
	{1, "Ethereum", false, 12 * time.Second, beaconDepth, false, false, "etherscan.io"},
	{10, "OP Mainnet", false, 2 * time.Second, sequencedDepth, false, false, "optimistic.etherscan.io"},
	{56, "BNB Smart Chain", false, 450 * ms, bscDepth, false, false, "bscscan.com"},
	{100, "Gnosis", false, 5 * time.Second, gnosisDepth, false, false, "gnosisscan.io"},
	{137, "Polygon", false, 2 * time.Second, polygonDepth, false, false, "polygonscan.com"},
	{143, "Monad", false, 400 * ms, sequencedDepth, false, false, "monadscan.com"},
	{196, "X Layer", false, time.Second, sequencedDepth, false, false, "www.oklink.com/xlayer"},
	{295, "Hedera", false, 2 * time.Second, sequencedDepth, false, false, "hashscan.io/mainnet"},
	{360, "Shape", false, 2 * time.Second, sequencedDepth, false, false, "shapescan.xyz"},
	{1088, "Metis", false, 0, sequencedDepth, true, false, "andromeda-explorer.metis.io"},
	{1776, "Injective", false, 600 * ms, sequencedDepth, false, false, "blockscout.injective.network"},
	{1868, "Soneium", false, 2 * time.Second, sequencedDepth, false, false, "soneium.blockscout.com"},
	{2345, "GOAT", false, 0, unknownDepth, false, false, "explorer.goat.network"},
	{2741, "Abstract", false, 200 * ms, sequencedDepth, false, false, "abscan.org"},
	{4326, "MegaETH", false, time.Second, sequencedDepth, false, false, "mega.etherscan.io"},
	{4663, "Robinhood Chain", false, 90 * ms, sequencedDepth, true, false, "robinhoodchain.blockscout.com"},
	{5000, "Mantle", false, 2 * time.Second, sequencedDepth, false, false, "mantlescan.xyz"},
	{8453, "Base", false, 200 * ms, sequencedDepth, false, false, "basescan.org"},
	{16661, "0G", false, 0, unknownDepth, false, false, "chainscan.0g.ai"},
	{42161, "Arbitrum One", false, 250 * ms, sequencedDepth, true, false, "arbiscan.io"},
	{42220, "Celo", false, time.Second, sequencedDepth, false, false, "celoscan.io"},
	{43114, "Avalanche", false, 1700 * ms, sequencedDepth, false, false, "snowscan.xyz"},
	{45056, "Billions", false, 0, unknownDepth, false, false, "billions-blockscout.eu-north-2.gateway.fm"},
	{59144, "Linea", false, 2 * time.Second, sequencedDepth, true, false, "lineascan.build"},
	{167000, "Taiko", false, time.Second, sequencedDepth, false, false, "taikoscan.io"},
	{534352, "Scroll", false, 3 * time.Second, sequencedDepth, true, false, "scrollscan.com"},
	{1187947933, "SKALE Base", false, 0, sequencedDepth, true, true, "skale-base-explorer.skalenodes.com"},
	{97, "BNB Smart Chain testnet", true, 450 * ms, bscDepth, false, false, "testnet.bscscan.com"},
	{296, "Hedera testnet", true, 2 * time.Second, sequencedDepth, false, false, "hashscan.io/testnet"},
	{1439, "Injective testnet", true, 600 * ms, sequencedDepth, false, false, "testnet.blockscout.injective.network"},
	{1946, "Soneium Minato", true, 2 * time.Second, sequencedDepth, false, false, "soneium-minato.blockscout.com"},
	{1952, "X Layer testnet", true, time.Second, sequencedDepth, false, false, "www.oklink.com/xlayer-test"},
	{5003, "Mantle Sepolia", true, 2 * time.Second, sequencedDepth, false, false, "sepolia.mantlescan.xyz"},
	{6343, "MegaETH testnet", true, time.Second, sequencedDepth, false, false, "testnet-mega.etherscan.io"},
	{6913, "Billions testnet", true, 0, unknownDepth, false, false, ""},
	{10143, "Monad testnet", true, 400 * ms, sequencedDepth, false, false, "testnet.monadexplorer.com"},
	{10200, "Gnosis Chiado", true, 5 * time.Second, gnosisDepth, false, false, "gnosis-chiado.blockscout.com"},
	{11011, "Shape Sepolia", true, 2 * time.Second, sequencedDepth, false, false, "sepolia.shapescan.xyz"},
	{11124, "Abstract testnet", true, 200 * ms, sequencedDepth, false, false, "sepolia.abscan.org"},
	{43113, "Avalanche Fuji", true, 1700 * ms, sequencedDepth, false, false, "testnet.snowscan.xyz"},
	{46630, "Robinhood Chain testnet", true, 90 * ms, sequencedDepth, true, false,
		"explorer.testnet.chain.robinhood.com"},
	{48816, "GOAT testnet", true, 0, unknownDepth, false, false, "explorer.testnet3.goat.network"},
	{59141, "Linea Sepolia", true, 2 * time.Second, sequencedDepth, true, false, "sepolia.lineascan.build"},
	{59902, "Metis Sepolia", true, 0, sequencedDepth, true, false, "sepolia-explorer.metisdevops.link"},
	{80002, "Polygon Amoy", true, 2 * time.Second, polygonDepth, false, false, "amoy.polygonscan.com"},
	{84532, "Base Sepolia", true, 200 * ms, sequencedDepth, false, false, "sepolia.basescan.org"},
	{167013, "Taiko Hoodi", true, time.Second, sequencedDepth, false, false, "hoodi.taikoscan.io"},
	{421614, "Arbitrum Sepolia", true, 250 * ms, sequencedDepth, true, false, "sepolia.arbiscan.io"},
	{534351, "Scroll Sepolia", true, 3 * time.Second, sequencedDepth, true, false, "sepolia.scrollscan.com"},
	{5042002, "Arc testnet", true, 0, unknownDepth, false, false, "explorer.testnet.arc.io"},
	{11142220, "Celo Sepolia", true, time.Second, sequencedDepth, false, false, "celo-sepolia.blockscout.com"},
	{11155111, "Ethereum Sepolia", true, 12 * time.Second, beaconDepth, false, false, "sepolia.etherscan.io"},
	{11155420, "OP Sepolia", true, 2 * time.Second, sequencedDepth, false, false, "sepolia-optimism.etherscan.io"},
	{324705682, "SKALE Base Sepolia", true, 0, sequencedDepth, true, true, ""},
}

// KnownChains returns the chains on which the registries are deployed, mainnets first.
func KnownChains() []Chain { return slices.Clone(knownChains[:]) }

// FindChain returns the chain with this id, and whether it is one of KnownChains. For any other chain it returns a
// Chain with defaults: confirmations of unknownDepth, or none on a development chain (1337, 31337).
func FindChain(chainID uint64) (_ Chain, known bool) {
	i := slices.IndexFunc(knownChains[:], func(c Chain) bool { return c.ID == chainID })
	switch {
	case i >= 0:
		return knownChains[i], true
	case chainID == 1337, chainID == 31337:
		return Chain{ID: chainID, Testnet: true, Quiet: true}, false
	}
	return Chain{ID: chainID, Confirmations: unknownDepth}, false
}

// MakesRegularBlocks reports whether the chain makes blocks even without transactions, so that an old head shows that a
// node is behind. It returns false for a chain that is not one of KnownChains.
func MakesRegularBlocks(chainID uint64) bool {
	chain, known := FindChain(chainID)
	return known && !chain.Quiet
}
