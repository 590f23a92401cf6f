import assert from "node:assert/strict";
import { createServer } from "node:http";
import { describe, test } from "node:test";

import {
  type Delivery,
  type Feedback,
  type Handlers,
  MemoryStore,
  registerHerald,
  Rejection,
} from "@agentherald/receiver";
import { sendBatch, sendFeedback, sendResponse, sendRevocation, sendValidation } from "@agentherald/receiver/testing";

import { listen, servers } from "./servers.js";

/** Handlers that record their calls. */
function recordCalls(more: Partial<Handlers> = {}) {
  const calls: [string, object, Delivery][] = [];
  const record = (name: string) => (event: object, delivery: Delivery) => {
    calls.push([name, event, delivery]);
    return `${name} ${calls.length}`;
  };
  const handlers: Handlers = {
    onFeedback: record("feedback"),
    onRevocation: record("revocation"),
    onResponse: record("response"),
    onValidation: record("validation"),
    store: new MemoryStore(),
    onError: () => {},
    ...more,
  };
  return { calls, handlers };
}

for (const [name, start] of Object.entries(servers)) {
  describe(name, () => {
    test("each event reaches its handler with every argument", async (t) => {
      const { calls, handlers } = recordCalls();
      const url = await start(t, handlers);
      assert.deepEqual(await sendFeedback(url, { tag1: "späť ✓", fileContent: { text: ["deep", { a: null }] } }), {
        outcome: "delivered",
        text: "feedback 1",
      });
      assert.equal(
        (await sendRevocation(url, { reason: "reorg", retracts: "5b0e0000-0000-8000-8000-000000000000" })).text,
        "revocation 2",
      );
      assert.equal((await sendResponse(url)).text, "response 3");
      assert.equal((await sendValidation(url)).text, "validation 4");
      const feedback = calls[0]![1] as Feedback;
      assert.equal(feedback.tag1, "späť ✓");
      assert.deepEqual(feedback.fileContent, { text: ["deep", { a: null }] });
      assert.equal(feedback.transactionHash?.length, 66);
    });

    test("a repeated delivery is answered and not processed", async (t) => {
      const { calls, handlers } = recordCalls();
      const url = await start(t, handlers);
      const deliveryId = crypto.randomUUID();
      for (const attempt of [1, 2])
        assert.equal((await sendFeedback(url, { deliveryId }, { attempt })).text, "feedback 1");
      const again = await sendBatch(url, [{ deliveryId }, {}]);
      assert.deepEqual(
        again.results?.map((r) => r.status),
        ["accepted", "accepted"],
      );
      assert.equal(calls.length, 2);
    });

    test("an error of the handler makes Herald send again, a Rejection does not", async (t) => {
      const errors: unknown[] = [];
      let fails = true;
      const { handlers } = recordCalls({
        onFeedback(feedback) {
          if (feedback.tag1 === "foreign") throw new Rejection("not my registry");
          if (fails) throw new Error("the password of the database is wrong");
        },
        onError: (error) => errors.push(error),
      });
      const url = await start(t, handlers);
      const deliveryId = crypto.randomUUID();
      const waits = await sendFeedback(url, { deliveryId });
      assert.equal(waits.outcome, "waits");
      assert.doesNotMatch(waits.text, /password/);
      assert.equal(errors.length, 1);
      assert.deepEqual(await sendFeedback(url, { tag1: "foreign" }), { outcome: "rejected", text: "not my registry" });
      fails = false;
      assert.equal((await sendFeedback(url, { deliveryId })).outcome, "delivered");
    });

    test("a batch has a result for each delivery, and one that fails delays only its client", async (t) => {
      const { handlers } = recordCalls({
        onFeedback({ tag1 }) {
          if (tag1 === "bad") throw new Error("no");
          if (tag1 === "foreign") throw new Rejection("not mine");
        },
      });
      const url = await start(t, handlers);
      const other = "0x2222222222222222222222222222222222222222";
      const answer = await sendBatch(url, [
        {},
        { tag1: "bad" },
        {},
        { clientAddress: other },
        { clientAddress: other, tag1: "foreign" },
      ]);
      assert.deepEqual(
        answer.results?.map((r) => r.status),
        ["accepted", "retry", "retry", "accepted", "rejected"],
      );
      assert.equal(answer.results?.[4]?.error, "not mine");
    });

    test("arguments that do not match the schema never reach the handler", async (t) => {
      const { calls, handlers } = recordCalls();
      const url = await start(t, handlers);
      for (const wrong of [
        { score: 101 },
        { feedbackIndex: 0 },
        { clientAddress: "me" },
        { deliveryId: "1" },
        { fileSource: "ftp" as "cid" },
        { more: 1 } as object,
      ]) {
        const { outcome } = await sendFeedback(url, wrong);
        assert.equal(outcome, "rejected", JSON.stringify(wrong));
      }
      assert.equal(calls.length, 0);
    });
  });
}

test("after 404 Herald calls again, unless it comes with a final JSON-RPC error", async (t) => {
  for (const [body, outcome] of [
    ["404 page not found", "waits"],
    ['{"error":{"code":404,"message":"no such app"}}', "waits"],
    ['{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no such method"}}', "rejected"],
  ] as const) {
    const origin = await listen(t, createServer((_, response) => void response.writeHead(404).end(body)));
    assert.equal((await sendFeedback(origin + "/mcp")).outcome, outcome, body);
  }
});

test("score and value of a sample are the same number", async (t) => {
  const { calls, handlers } = recordCalls();
  const url = await servers["SDK 2"](t, handlers);
  for (const given of [{}, { score: 0.5 }, { value: "9977", valueDecimals: 2 }, { value: "-5" }])
    await sendFeedback(url, given);
  const ratings = calls.map(([, event]) => event as Feedback);
  assert.deepEqual(
    ratings.map((f) => [f.score, f.value, f.valueDecimals]),
    [
      [95, "95", 0],
      [0.5, "5", 1],
      [99.77, "9977", 2],
      [undefined, "-5", 0],
    ],
  );
});

for (const name of ["SDK 1, no sessions, JSON", "SDK 2", "FastMCP"] as const) {
  test(`${name} lists the schemas of docs/tools`, async (t) => {
    const { handlers } = recordCalls({ onValidation: undefined });
    const listed = await listTools(await servers[name](t, handlers));
    assert.deepEqual(Object.keys(listed).sort(), [
      "agent.receiveFeedback",
      "agent.receiveFeedbackBatch",
      "agent.receiveResponse",
      "agent.receiveRevocation",
    ]);
    const feedback = listed["agent.receiveFeedback"]!;
    const items = listed["agent.receiveFeedbackBatch"]!.properties.deliveries!.items!;
    for (const schema of [feedback, items]) {
      assert.equal(Object.keys(schema.properties).length, 21);
      assert.equal(schema.required.length, 20);
      assert.equal(schema.additionalProperties, false);
      assert.match(schema.properties.value!.pattern!, /^\^-\?/);
    }
    assert.equal(listed["agent.receiveFeedbackBatch"]!.properties.deliveries!.maxItems, 50);
  });
}

test("the handler knows the attempt and a replay", async (t) => {
  const { calls, handlers } = recordCalls();
  const url = await servers["SDK 2"](t, handlers);
  await sendFeedback(url, {}, { attempt: 3, replay: true });
  await sendBatch(url, [{}, {}], { attempt: 2 });
  assert.deepEqual(
    calls.map(([, , d]) => [d.attempt, d.replay]),
    [
      [3, true],
      [2, false],
      [2, false],
    ],
  );
});

for (const name of ["SDK 1, no sessions, JSON", "SDK 2", "FastMCP, stateless"] as const) {
  test(`${name} acknowledges a probe, whose event never happened, without its handler`, async (t) => {
    const { calls, handlers } = recordCalls();
    const url = await servers[name](t, handlers);
    const acknowledged = { outcome: "delivered", text: '{"acknowledged":true,"probe":true}' };
    const deliveryId = "70726f62-6500-8000-8000-000000000000";
    assert.deepEqual(await sendFeedback(url, { deliveryId }), acknowledged);
    assert.deepEqual(await sendFeedback(url, {}, { probe: true }), acknowledged);
    assert.deepEqual(await sendRevocation(url, {}, { probe: true }), acknowledged);
    const { results } = await sendBatch(url, [{}, {}], { probe: true });
    assert.deepEqual(
      results?.map((r) => [r.status, r.deliveryId.slice(0, 24)]),
      Array(2).fill(["accepted", "70726f62-6500-8000-8000-"]),
    );
    assert.equal(calls.length, 0);
  });
}

test("_meta marks a probe with any id", async (t) => {
  const { calls, handlers } = recordCalls();
  const url = await servers["SDK 2"](t, handlers);
  const deliveryId = crypto.randomUUID();
  await sendFeedback(url, { deliveryId }, { probe: true });
  await sendBatch(url, [{ deliveryId }], { probe: true });
  assert.equal(calls.length, 0);
});

test("a direct call is refused, because Herald verified nothing in it", async () => {
  const { calls, handlers } = recordCalls();
  const tools = new Map<string, (args: unknown, context: object) => Promise<{ isError?: boolean }>>();
  registerHerald(
    { server: {}, registerTool: (name: string, _: object, call: never) => tools.set(name, call) },
    handlers,
  );
  for (const context of [
    { _meta: { "io.agentherald/direct": {} } },
    { mcpReq: { _meta: { "io.agentherald/direct": {} } } },
  ]) {
    assert.equal((await tools.get("agent.receiveFeedback")!({}, context)).isError, true);
  }
  assert.equal(calls.length, 0);
});

interface Listed {
  properties: Record<string, { pattern?: string; maxItems?: number; items?: Listed }>;
  required: string[];
  additionalProperties?: boolean;
}

async function listTools(url: string): Promise<Record<string, Listed>> {
  const headers: Record<string, string> = {
    accept: "application/json, text/event-stream",
    "content-type": "application/json",
  };
  const post = (message: object) =>
    fetch(url, { method: "POST", headers, body: JSON.stringify({ jsonrpc: "2.0", ...message }) });
  const opened = await post({
    id: 1,
    method: "initialize",
    params: { protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: "t", version: "1" } },
  });
  await opened.text();
  const session = opened.headers.get("mcp-session-id");
  if (session) headers["mcp-session-id"] = session;
  await (await post({ method: "notifications/initialized" })).text();
  const text = await (await post({ id: 2, method: "tools/list" })).text();
  const { result } = JSON.parse(/^\{.*\}$|(?<=data: ?)\{.*"tools".*\}/m.exec(text)![0]) as {
    result: { tools: { name: string; inputSchema: Listed }[] };
  };
  return Object.fromEntries(result.tools.map((tool) => [tool.name, tool.inputSchema]));
}
