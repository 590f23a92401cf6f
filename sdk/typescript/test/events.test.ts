import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

// These tests run from build/.
const root = new URL("../", import.meta.url);

test("src/events.ts is what scripts/generate.mjs writes from docs/tools", async () => {
  const { generate } = (await import(new URL("scripts/generate.mjs", root).href)) as { generate(): string };
  assert.equal(readFileSync(new URL("src/events.ts", root), "utf8"), generate(), "run npm run generate");
});
