#!/bin/sh
# Rebuilds the ABIs and the bytecode of the contracts. It needs node and npm, and the network unless npm
# has cached the compiler. Its output is committed, so other builds need none of these.
set -eu
solc=0.8.37

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
npm install --silent --no-audit --no-fund --prefix "$scratch" "solc@$solc"
node "$here/compile.cjs" "$scratch"
