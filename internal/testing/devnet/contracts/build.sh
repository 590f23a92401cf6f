#!/bin/sh
# Rebuilds the ABIs, the bytecode and the Go bindings of the development registries. It needs node, npm and go, and
# the network unless npm and Go have cached the packages. Its output is committed, so other builds need none of these.
set -eu
solc=0.8.37
abigen=${ABIGEN:-go run github.com/ethereum/go-ethereum/cmd/abigen@v1.17.10}

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
npm install --silent --no-audit --no-fund --prefix "$scratch" "solc@$solc"
node "$here/compile.cjs" "$scratch"
for name in IdentityRegistry ReputationRegistry ValidationRegistry; do
	dir=$here/../registry
	mkdir -p "$dir"
	file=$(printf %s "$name" | sed 's/Registry$//' | tr '[:upper:]' '[:lower:]').go
	$abigen --v2 --abi "$here/$name.abi" --bin "$here/$name.bin" --pkg registry --type "$name" --out "$dir/$file"
done
chmod 644 "$here"/../registry/*.go
