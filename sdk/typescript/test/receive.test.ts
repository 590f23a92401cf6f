import assert from "node:assert/strict";
import { test } from "node:test";

import { type Handlers, MemoryStore, registerHerald } from "@agentherald/receiver";

interface Tool {
  name: string;
  parameters: {
    "~standard": { validate(args: unknown): Promise<{ value: { content: { text: string }[]; isError?: boolean } }> };
  };
}

/** Registers at a server that only keeps the tools, so that a test decides when each call begins. */
function callerOf(handlers: Handlers) {
  const tools = new Map<string, Tool>();
  registerHerald({ addTool: (tool: Tool) => void tools.set(tool.name, tool) }, handlers);
  return async (tool: string, args: object) => (await tools.get(tool)!.parameters["~standard"].validate(args)).value;
}

const revocation = (deliveryId: string) => ({
  clientAddress: "0x" + "1".repeat(40),
  feedbackIndex: 1,
  reason: "client",
  blockNumber: null,
  timestamp: null,
  agentId: "1",
  agentRegistry: "eip155:1:0x" + "2".repeat(40),
  chainId: 1,
  transactionHash: null,
  logIndex: null,
  retracts: null,
  deliveryId,
});

/** Returns the feedback of client i. */
function feedback(i: number) {
  const { reason, retracts, ...common } = revocation(crypto.randomUUID());
  return {
    ...common,
    clientAddress: "0x" + String(i).repeat(40),
    value: "1",
    valueDecimals: 0,
    tag1: "",
    tag2: "",
    fileUri: null,
    fileHash: null,
    fileContent: null,
    fileVerification: "not_given",
    fileSource: null,
    endpoint: "",
  };
}

test("a second call during the first waits for its result, also from another registration", async () => {
  const began = withResolvers<void>();
  const finish = withResolvers<string>();
  let calls = 0;
  const handlers: Handlers = {
    onFeedback() {},
    onRevocation: () => (calls++, began.resolve(), finish.promise),
    store: new MemoryStore(),
  };
  const args = revocation(crypto.randomUUID());
  const first = callerOf(handlers)("agent.receiveRevocation", args);
  await began.promise;
  const second = callerOf(handlers)("agent.receiveRevocation", args);
  finish.resolve("done");
  assert.deepEqual(
    (await Promise.all([first, second])).map((r) => r.content[0]!.text),
    ["done", "done"],
  );
  assert.equal(calls, 1);
});

test("a second call waits too if the factory of the server makes a new store object for each request", async () => {
  const answers = new Map<string, string>(); // the author's table
  const finish = withResolvers<void>();
  let calls = 0;
  const call = (args: object) =>
    callerOf({
      onFeedback() {},
      onRevocation: () => (calls++, finish.promise),
      store: { get: (id) => answers.get(id), put: (id, answer) => answers.set(id, answer) },
    })("agent.receiveRevocation", args);
  const args = revocation(crypto.randomUUID());
  const both = [call(args), call(args)];
  await new Promise(setImmediate);
  finish.resolve();
  for (const answer of both) assert.equal((await answer).content[0]!.text, '{"acknowledged":true}');
  assert.equal(calls, 1);
});

test("a handler that failed is called again, also by the call that waited", async () => {
  let calls = 0;
  const handlers: Handlers = {
    onFeedback() {},
    onRevocation: async () => {
      if (++calls === 1) throw new Error("no");
    },
    store: new MemoryStore(),
    onError() {},
  };
  const call = callerOf(handlers);
  const args = revocation(crypto.randomUUID());
  const both = await Promise.allSettled([call("agent.receiveRevocation", args), call("agent.receiveRevocation", args)]);
  assert.deepEqual(
    both.map((r) => r.status),
    ["rejected", "rejected"],
  );
  assert.equal((await call("agent.receiveRevocation", args)).content[0]!.text, '{"acknowledged":true}');
  assert.equal(calls, 2);
});

test("an error of the store makes Herald send again", async () => {
  const answers = new Map<string, string>();
  const errors: unknown[] = [];
  let down = true;
  const store = {
    get: async (id: string) => answers.get(id) ?? null,
    put: async (id: string, answer: string) => {
      if (down) throw new Error("down");
      answers.set(id, answer);
    },
  };
  const call = callerOf({
    onFeedback() {},
    onRevocation: () => "stored",
    store,
    onError: (error) => errors.push(error),
  });
  const args = revocation(crypto.randomUUID());
  await assert.rejects(call("agent.receiveRevocation", args), { name: "Retry" });
  down = false;
  for (let i = 0; i < 2; i++) assert.equal((await call("agent.receiveRevocation", args)).content[0]!.text, "stored");
  assert.equal(errors.length, 1);
});

test("Herald sends again, too, when onError throws", async (t) => {
  const log = t.mock.method(console, "error", () => {});
  const fail = () => {
    throw new Error("no");
  };
  const call = callerOf({ onFeedback() {}, onRevocation: fail, onError: fail, store: new MemoryStore() });
  await assert.rejects(call("agent.receiveRevocation", revocation(crypto.randomUUID())), { name: "Retry" });
  assert.equal(log.mock.callCount(), 1);
});

test("registrations without a store share one", async () => {
  let calls = 0;
  const args = revocation(crypto.randomUUID());
  for (let i = 0; i < 2; i++)
    await callerOf({ onFeedback() {}, onRevocation: () => void calls++ })("agent.receiveRevocation", args);
  assert.equal(calls, 1);
});

test("the answer of a handler is cut to 16,384 characters, and a value that is no text is no answer", async () => {
  const call = callerOf({
    onFeedback() {},
    onRevocation: ({ timestamp }) => (timestamp ? "x".repeat(20_000) : { rows: 1 }),
    store: new MemoryStore(),
  });
  assert.equal(
    (await call("agent.receiveRevocation", { ...revocation(crypto.randomUUID()), timestamp: 1 })).content[0]!.text
      .length,
    16_384,
  );
  assert.equal(
    (await call("agent.receiveRevocation", revocation(crypto.randomUUID()))).content[0]!.text,
    '{"acknowledged":true}',
  );
});

test("MemoryStore evicts the least recently used delivery", () => {
  const store = new MemoryStore(2);
  store.put("a", "1");
  store.put("b", "2");
  assert.equal(store.get("a"), "1");
  store.put("c", "3");
  assert.deepEqual(
    ["a", "b", "c"].map((id) => store.get(id)),
    ["1", undefined, "3"],
  );
  assert.throws(() => new MemoryStore(0), RangeError);
});

test("a batch that takes too long asks for the rest again", async (t) => {
  t.mock.timers.enable({ apis: ["Date"] });
  const call = callerOf({ onFeedback: () => t.mock.timers.tick(10_000), store: new MemoryStore() });
  const answer = await call("agent.receiveFeedbackBatch", { deliveries: [1, 2, 3, 4].map(feedback) });
  const { results } = JSON.parse(answer.content[0]!.text) as { results: { status: string }[] };
  assert.deepEqual(
    results.map((r) => r.status),
    ["accepted", "accepted", "retry", "retry"],
  );
});

test("a call asks Herald to send again if the handler of an earlier call takes too long, and never calls it twice", async (t) => {
  t.mock.timers.enable({ apis: ["Date", "setTimeout"] });
  const began = withResolvers<void>();
  const finish = withResolvers<string>();
  const args = feedback(1);
  let calls = 0;
  const call = callerOf({
    onFeedback: ({ deliveryId }) => {
      if (deliveryId !== args.deliveryId) return "stored";
      calls++;
      began.resolve();
      return finish.promise;
    },
    store: new MemoryStore(),
  });
  /** Ticks until the answer is there, and returns it with the milliseconds that it took. */
  async function tick<T>(answer: Promise<T>): Promise<[T, number]> {
    const start = Date.now();
    let done = false;
    const end = () => void (done = true);
    answer.then(end, end);
    for (; !done && Date.now() - start < 60_000; t.mock.timers.tick(1_000)) await new Promise(setImmediate);
    return [await answer, Date.now() - start];
  }
  const first = call("agent.receiveFeedback", args);
  await began.promise;
  const [error, took] = await tick(call("agent.receiveFeedback", args).catch((error: Error) => error.name));
  assert.equal(error, "Retry");
  assert.ok(took >= 20_000 && took < 25_000, `${took} ms`);
  const [batch, long] = await tick(call("agent.receiveFeedbackBatch", { deliveries: [feedback(2), args, feedback(3)] }));
  const { results } = JSON.parse(batch.content[0]!.text) as { results: { status: string }[] };
  assert.deepEqual(
    results.map((r) => r.status),
    ["accepted", "retry", "retry"],
  );
  assert.ok(long >= 15_000 && long < 20_000, `${long} ms`);
  finish.resolve("done");
  for (const answer of [first, call("agent.receiveFeedback", args)])
    assert.equal((await answer).content[0]!.text, "done");
  assert.equal(calls, 1);
});

// Node 20 has no Promise.withResolvers.
function withResolvers<T>() {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>((done) => (resolve = done));
  return { promise, resolve };
}
