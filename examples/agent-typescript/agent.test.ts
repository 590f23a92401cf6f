import assert from "node:assert/strict";
import type { AddressInfo } from "node:net";
import { type TestContext, test } from "node:test";
import { onlyHerald } from "@agentherald/receiver";
import { createHerald, sendBatch, sendFeedback, sendRevocation } from "@agentherald/receiver/testing";
import sqlite from "node-sqlite3-wasm";

import { newAgent, newGuard, newServer } from "./agent.js";

const timestamp = Math.floor(Date.now() / 1000);

async function start(t: TestContext, guard?: (origin: string) => ReturnType<typeof onlyHerald>) {
  const db = new sqlite.Database();
  const later: { fetch?: (request: Request) => Promise<Response> } = {};
  const server = newServer((request) => later.fetch!(request));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close(() => db.close());
  });
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  later.fetch = newAgent(db, guard?.(origin));
  return { origin, db, restart: () => (later.fetch = newAgent(db)) };
}

async function ask(origin: string, days = 7) {
  const body = JSON.stringify({
    jsonrpc: "2.0",
    id: 1,
    method: "tools/call",
    params: { name: "feedback.dislikes", arguments: { days } },
  });
  const headers = { "content-type": "application/json", accept: "application/json, text/event-stream" };
  const text = await (await fetch(origin + "/own", { method: "POST", headers, body })).text();
  return JSON.parse(JSON.parse(/\{"(result|jsonrpc)".*\}/.exec(text)![0]).result.content[0].text);
}

test("it tells what clients disliked, without revoked and old feedback", async (t) => {
  const { origin } = await start(t);
  const gone = crypto.randomUUID();
  await sendBatch(origin + "/mcp", [
    { timestamp, score: 95 },
    { timestamp, score: 10, tag1: "late", fileContent: { text: "an hour" } },
    { timestamp, score: 20, tag1: "late", fileContent: { text: 7 } },
    { timestamp, score: 5, tag1: "rude" },
    { timestamp: 1, score: 1, tag1: "old" },
  ]);
  await sendFeedback(origin + "/mcp", { timestamp, score: 0, tag1: "orphan", feedbackIndex: 9, deliveryId: gone });
  await sendRevocation(origin + "/mcp", { feedbackIndex: 4 });
  await sendRevocation(origin + "/mcp", { feedbackIndex: 9, reason: "reorg", retracts: gone });
  const answer = await ask(origin);
  assert.deepEqual(answer.feedback, { total: 3, average: 41.7 });
  assert.deepEqual(answer.disliked, [{ tag: "late", times: 2, worst: 10 }]);
  assert.deepEqual(answer.texts, [
    { client: "0x1111111111111111111111111111111111111111", score: 10, tag: "late", text: "an hour" },
  ]);
});

test("a repeated delivery is stored once, also after a restart", async (t) => {
  const { origin, db, restart } = await start(t);
  const deliveryId = crypto.randomUUID();
  for (const attempt of [1, 2]) {
    assert.equal((await sendFeedback(origin + "/mcp", { deliveryId, timestamp }, { attempt })).outcome, "delivered");
    restart();
  }
  assert.equal(db.get("SELECT count(*) AS n FROM feedback")!.n, 1);
  assert.equal(db.get("SELECT count(*) AS n FROM answers WHERE delivery_id = ?", [deliveryId])!.n, 1);
});

test("a batch of 4 MiB arrives", async (t) => {
  const { origin } = await start(t);
  const fileContent = { text: "long".repeat(1 << 19) };
  const { results } = await sendBatch(origin + "/mcp", [{ fileContent }, { fileContent }]);
  assert.deepEqual(results?.map(({ status }) => status), ["accepted", "accepted"]);
});

test("only Herald reaches /mcp if it is named", async (t) => {
  const herald = await createHerald();
  const { origin } = await start(t, (self) => onlyHerald({ herald: herald.url, self, fetch: herald.fetch }));
  assert.equal((await sendFeedback(origin + "/mcp")).outcome, "held");
  assert.equal((await herald.sendFeedback(origin + "/mcp", { timestamp })).outcome, "delivered");
  assert.equal((await ask(origin)).feedback.total, 1);
});

test("it refuses to start with only one of HERALD and SELF, since it would serve anyone", () => {
  const [herald, self] = ["https://herald.example", "https://agent.example"];
  for (const env of [{ HERALD: herald }, { SELF: self }, { HERALD: herald, SELF: "" }])
    assert.throws(() => newGuard(env), /both HERALD and SELF/);
  assert.equal(newGuard({}), undefined);
  assert.equal(typeof newGuard({ HERALD: herald, SELF: self }), "function");
});
