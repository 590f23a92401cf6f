// Compiles the contracts with npm's solc: node compile.cjs FOLDER-WITH-NODE_MODULES. Called by build.sh.
"use strict";
const fs = require("fs");
const path = require("path");
const solc = require(require.resolve("solc", { paths: [process.argv[2]] }));

const names = ["IdentityRegistry", "ReputationRegistry", "ValidationRegistry", "Emitter"];
const read = (file) => fs.readFileSync(path.join(__dirname, file), "utf8");
const input = {
  language: "Solidity",
  sources: Object.fromEntries([...names, "IAgents"].map((n) => [`${n}.sol`, { content: read(`${n}.sol`) }])),
  settings: {
    optimizer: { enabled: true, runs: 200 },
    viaIR: true, // giveFeedback has more on its stack than the older code generator can reach
    evmVersion: "paris", // no PUSH0, so that any development chain takes it
    metadata: { bytecodeHash: "none" }, // the same bytes wherever it is built
    outputSelection: { "*": { "*": ["abi", "evm.bytecode.object"] } },
  },
};
const output = JSON.parse(solc.compile(JSON.stringify(input)));
let failed = false;
for (const e of output.errors ?? []) {
  console.error(e.formattedMessage);
  failed = true; // warnings too
}
if (failed) process.exit(1);
for (const n of names) {
  const c = output.contracts[`${n}.sol`][n];
  fs.writeFileSync(path.join(__dirname, `${n}.abi`), JSON.stringify(c.abi, null, 1) + "\n");
  fs.writeFileSync(path.join(__dirname, `${n}.bin`), c.evm.bytecode.object + "\n");
}
