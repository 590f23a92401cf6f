import assert from "node:assert/strict";
import { createServer, request as httpRequest } from "node:http";
import { describe, test, type TestContext } from "node:test";

import { MemoryStore, onlyHerald, type SignatureOptions } from "@agentherald/receiver";
import { onlyHerald as expressOnlyHerald } from "@agentherald/receiver/express";
import { onlyHerald as honoOnlyHerald } from "@agentherald/receiver/hono";
import { createHerald, type FakeHerald, sendFeedback } from "@agentherald/receiver/testing";
import express from "express";
// @ts-expect-error Express 4 brings no types.
import express4 from "express4";
import { Hono } from "hono";

import { listen, sdk2Handler, serveFetch, startSdk1 } from "./servers.js";

const self = "https://agent.example";
const path = "/.well-known/http-message-signatures-directory";
const handlers = () => ({ onFeedback: () => "taken", store: new MemoryStore(), onError() {} });

/** Returns a signed request to agent.example. */
function signRequest(herald: FakeHerald): Promise<Request> {
  const headers = { "content-type": "application/json", "mcp-protocol-version": "2025-11-25" };
  return herald.sign(
    new Request(self + "/mcp?x=1", { method: "POST", headers, body: '{"jsonrpc":"2.0","id":1,"method":"ping"}' }),
  );
}

function guard(options: Partial<SignatureOptions> & { herald: string }) {
  const serve = onlyHerald({ self, ...options })(async (request) => new Response(await request.text()));
  return async (request: Request) => (await serve(request)).status;
}

async function change(request: Request, headers: Record<string, string>, body?: string): Promise<Request> {
  const changed = new Headers(request.headers);
  for (const [name, value] of Object.entries(headers)) value === "" ? changed.delete(name) : changed.set(name, value);
  return new Request(request.url, {
    method: request.method,
    headers: changed,
    body: body ?? (await request.clone().text()),
  });
}

test("a signed request passes once", async () => {
  const herald = await createHerald();
  const serve = onlyHerald({ herald: herald.url, self, fetch: herald.fetch })(
    async (request, more: number) => new Response((await request.text()) + more),
  );
  const request = await signRequest(herald);
  const body = await request.clone().text();
  const first = await serve(request.clone(), 7);
  assert.deepEqual([first.status, await first.text()], [200, body + "7"]);
  const second = await serve(request, 7);
  assert.equal(second.status, 401);
  assert.match(await second.text(), /sent before/);
});

test("a request that was changed or forged is refused", async () => {
  const herald = await createHerald();
  const stranger = await createHerald();
  const check = guard({ herald: herald.url, fetch: herald.fetch });
  const input = (from: string, to: string) => async (request: Request) => {
    const value = request.headers.get("signature-input")!;
    assert.ok(value.includes(from), from);
    return change(request, { "signature-input": value.replace(from, to) });
  };
  const changes: Record<string, (request: Request) => Promise<Request>> = {
    "no signature": (r) => change(r, { "signature-input": "" }),
    "no signature value": (r) => change(r, { signature: "" }),
    "another signature": async (r) => change(r, { signature: (await signRequest(herald)).headers.get("signature")! }),
    "a signature that is not base64": (r) => change(r, { signature: `sig1=:${"=".repeat(88)}:` }),
    "another body": async (r) => change(r, {}, (await r.clone().text()) + " "),
    "no body": async (r) => new Request(r.url, { method: "POST", headers: r.headers }),
    "another query": async (r) =>
      new Request(self + "/mcp?x=2", { method: "POST", headers: r.headers, body: await r.clone().text() }),
    "another method": async (r) =>
      new Request(r.url, { method: "PUT", headers: r.headers, body: await r.clone().text() }),
    "another content type": (r) => change(r, { "content-type": "text/plain" }),
    "another header of MCP": (r) => change(r, { "mcp-session-id": "s" }),
    "another revision of MCP": (r) => change(r, { "mcp-protocol-version": "2025-06-18" }),
    "another digest": (r) => change(r, { "content-digest": "sha-512=:AAAA:" }),
    "another signer": (r) => change(r, { "signature-agent": 'sig1="https://stranger.example"' }),
    "a longer life": input("expires=1", "expires=2"),
    "another time": input("created=1", "created=3"),
    "the body not covered": input('"content-digest" ', ""),
    "a missing header covered": input('"content-digest" ', '"content-digest" "x-none" '),
    "a part that is no header covered": input('"content-digest" ', '"content-digest" "@authority" '),
    "another algorithm": input("ed25519", "hmac-sha256"),
    "another tag": input("web-bot-auth", "web-bot"),
    "a parameter twice": input(";alg=", ';alg="none";alg='),
    "a part twice": input('"@method"', '"@method" "@method"'),
    "an empty signature": (r) => change(r, { "signature-input": "sig1=()" }),
    "the key of a stranger": () => signRequest(stranger),
  };
  for (const [name, alter] of Object.entries(changes))
    assert.equal(await check(await alter(await signRequest(herald))), 401, name);
  assert.equal(await check(await signRequest(herald)), 200);
});

test("the answer names the fault of a signature that is not in Herald's form", async () => {
  const herald = await createHerald();
  const serve = onlyHerald({ herald: herald.url, self, fetch: herald.fetch })(() => new Response());
  for (const [from, to, fault] of [
    [";alg=", ';alg="none";alg=', /twice/],
    ["ed25519", "hmac-sha256", /alg, tag or nonce/],
    ["web-bot-auth", "web-bot", /alg, tag or nonce/],
  ] as const) {
    const request = await signRequest(herald);
    const answer = await serve(
      await change(request, { "signature-input": request.headers.get("signature-input")!.replace(from, to) }),
    );
    assert.match(await answer.text(), fault);
  }
});

test("a signature is valid from a minute before its time to a minute after it", async () => {
  const herald = await createHerald();
  const request = await signRequest(herald);
  const base = Number(/created=([0-9]+)/.exec(request.headers.get("signature-input")!)![1]);
  for (const [offset, status] of [
    [-62, 401],
    [-58, 200],
    [358, 200],
    [362, 401],
  ] as const) {
    const check = guard({ herald: herald.url, fetch: herald.fetch, now: () => (base + offset) * 1000 });
    assert.equal(await check(request.clone()), status, `${offset} s`);
  }
});

test("the directory is fetched once for known keys, and at most every 10 seconds for unknown ones", async () => {
  const herald = await createHerald();
  let [now, fetches, keys] = [Date.now(), 0, herald];
  const check = guard({ herald: herald.url, now: () => now, fetch: (url) => (fetches++, keys.fetch(url)) });
  const all = await Promise.all(Array.from({ length: 5 }, async () => check(await signRequest(herald))));
  assert.deepEqual([all, fetches], [[200, 200, 200, 200, 200], 1]);
  const next = await createHerald();
  keys = next;
  for (const wait of [0, 9_000, 11_000]) {
    now += wait;
    assert.equal(await check(await signRequest(next)), wait === 11_000 ? 200 : 401);
  }
  assert.equal(fetches, 2);
});

test("503 while the keys cannot be fetched, and known keys remain valid", async () => {
  const herald = await createHerald();
  let [now, answer] = [
    Date.now(),
    async (_: string): Promise<Response> => {
      throw new Error("no network");
    },
  ];
  const check = guard({ herald: herald.url, now: () => now, fetch: (url) => answer(url) });
  const faults: (() => Promise<Response>)[] = [
    answer.bind(null, ""),
    async () =>
      new Response((await herald.fetch(herald.url + path)).body, {
        status: 302,
        headers: { location: "https://stranger.example" },
      }),
    async () => new Response("x"),
    async () => Response.json({ keys: null }),
    async () => new Response("[" + " ".repeat(70_000) + "]"),
  ];
  for (const fault of faults) {
    answer = fault;
    now += 11_000;
    assert.equal(await check(await signRequest(herald)), 503);
  }
  answer = herald.fetch;
  now = Date.now() + 30_000;
  assert.equal(
    await guard({ herald: herald.url, now: () => now, fetch: (url) => answer(url) })(await signRequest(herald)),
    200,
  );
  const kept = guard({ herald: herald.url, now: () => now, fetch: (url) => answer(url) });
  assert.equal(await kept(await signRequest(herald)), 200);
  answer = faults[0]!;
  now += 301_000 - 30_000 - 1_000; // the signatures are of the real time
  assert.equal(await kept(await signRequest(herald)), 200);
});

test("a body over the limit is refused with 413", async () => {
  const herald = await createHerald();
  assert.equal(await guard({ herald: herald.url, fetch: herald.fetch, maxBody: 20 })(await signRequest(herald)), 413);
});

test("addresses that cannot be compared are refused at once", () => {
  for (const herald of [
    "herald.example",
    "ftp://herald.example",
    "https://herald.example?a",
    "https://u:p@herald.example",
    "",
  ]) {
    assert.throws(() => onlyHerald({ herald, self }), TypeError, herald);
  }
  const good = { herald: "https://herald.example/", self: "http://127.0.0.1:8081/agents" };
  onlyHerald(good);
  express().use("/mcp", expressOnlyHerald(good));
  new Hono().use("/mcp", honoOnlyHerald(good));
});

test("addresses may be spelled as in a registration, although Herald signs a canonical form", async () => {
  const herald = await createHerald("https://Herald.example:443/");
  assert.equal(herald.url, "https://herald.example");
  for (const [self, signed] of [
    ["https://Agent.example:443", "https://agent.example"],
    ["HTTPS://agent.example./", "https://agent.example"],
    ["https://agent.example.:8443", "https://agent.example:8443"],
    ["http://agent.example:80", "http://agent.example"],
    ["https://münchen.example", "https://xn--mnchen-3ya.example"],
    ["https://agent.example/a%20b/Agents/", "https://agent.example/a%20b/Agents"],
  ] as const) {
    const check = guard({ herald: "HTTPS://herald.Example./", self, fetch: herald.fetch });
    const sent = await herald.sign(new Request(signed + "/mcp?x=1", { method: "POST", body: "{}" }));
    const received = new Request("http://127.0.0.1/mcp?x=1", { method: "POST", headers: sent.headers, body: "{}" });
    assert.equal(await check(received), 200, self);
  }
});

/** Each starts an agent that serves only herald. */
const guarded: Record<string, (t: TestContext, herald: FakeHerald) => Promise<string>> = {
  async fetch(t, herald) {
    const later: { serve?: (request: Request) => Promise<Response> } = {};
    const url = await serveFetch(t, (request) => later.serve!(request));
    later.serve = onlyHerald({ herald: herald.url, self: new URL(url).origin, fetch: herald.fetch })(
      sdk2Handler(handlers()),
    );
    return url;
  },
  async Hono(t, herald) {
    const later: { app?: Hono } = {};
    const url = await serveFetch(t, (request) => later.app!.fetch(request));
    later.app = new Hono().use(honoOnlyHerald({ herald: herald.url, self: new URL(url).origin, fetch: herald.fetch }));
    const serve = sdk2Handler(handlers());
    later.app.post("/mcp", (context) => serve(context.req.raw));
    return url;
  },
  "Express 5": (t, herald) => startExpress(t, herald, express),
  "Express 4": (t, herald) => startExpress(t, herald, express4),
};

async function startExpress(t: TestContext, herald: FakeHerald, framework: typeof express): Promise<string> {
  const later: { guard?: ReturnType<typeof expressOnlyHerald> } = {};
  const url = await startSdk1(
    t,
    handlers(),
    (request, response, next) => void later.guard!(request, response, next),
    true,
    framework,
  );
  later.guard = expressOnlyHerald({
    herald: herald.url,
    self: new URL(url).origin,
    fetch: herald.fetch,
    maxBody: 100_000,
  });
  return url;
}

for (const [name, start] of Object.entries(guarded)) {
  describe(name, () => {
    test("Herald's calls pass, and those of strangers are refused", async (t) => {
      const herald = await createHerald();
      const stranger = await createHerald();
      const url = await start(t, herald);
      assert.deepEqual(await herald.sendFeedback(url), { outcome: "delivered", text: "taken" });
      assert.equal((await sendFeedback(url)).outcome, "held");
      assert.equal((await stranger.sendFeedback(url)).outcome, "held");
      assert.equal((await herald.sendFeedback(url + "?a=%20b&c='%2F")).outcome, "delivered");
    });
  });
}

test("Express: a long body is answered with 413", async (t) => {
  const herald = await createHerald();
  const url = await startExpress(t, herald, express);
  const status = await new Promise((resolve, reject) => {
    const request = httpRequest(url, { method: "POST", headers: { "content-length": 200_000 } }, (response) =>
      resolve(response.statusCode),
    );
    request.on("error", reject).end(Buffer.alloc(200_000));
  });
  assert.equal(status, 413);
});

test("Express: express.json before the middleware needs verify", async (t) => {
  const herald = await createHerald();
  for (const verified of [true, false]) {
    const app = express();
    app.use(
      express.json({
        verify: (request, _, bytes) => {
          if (verified) (request as { rawBody?: Buffer }).rawBody = bytes;
        },
      }),
    );
    const later: { guard?: ReturnType<typeof expressOnlyHerald> } = {};
    app.use((request, response, next) => void later.guard!(request, response, next));
    app.post(
      "/",
      (request, response) =>
        void response.json({ jsonrpc: "2.0", id: request.body.id, result: { content: [{ text: "ok" }] } }),
    );
    app.use(
      (error: Error, _: express.Request, response: express.Response, _next: express.NextFunction) =>
        void response.status(500).send(error.message),
    );
    const origin = await listen(t, createServer(app));
    later.guard = expressOnlyHerald({ herald: herald.url, self: origin, fetch: herald.fetch });
    const answer = await herald.sendFeedback(origin + "/");
    assert.equal(answer.outcome, verified ? "delivered" : "waits");
    if (!verified) assert.match(answer.text, /before express\.json/);
  }
});
