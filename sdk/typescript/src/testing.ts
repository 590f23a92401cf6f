// A Herald for your own tests. It calls your agent over streamable HTTP, as Herald does, but checks nothing on a chain.
import { directoryPath, keyThumbprint } from "./directory.js";
import type { Feedback, FeedbackResponse, Revocation, Validation } from "./events.js";
import { digestBody, encodeBase64, readBody } from "./http.js";
import { probePrefix } from "./receive.js";
import { checkAddress } from "./signature.js";

/** The effect of your agent's answer. */
export interface Answer {
  /** delivered and rejected are final. Herald sends again if the delivery waits, or once its operator acted if held. */
  outcome: "delivered" | "rejected" | "waits" | "held";
  /** The text of the answer or of the error. */
  text: string;
  /** The results of a batch. */
  results?: { deliveryId: string; status: "accepted" | "rejected" | "retry"; error?: string }[];
}

/** The description of a call in _meta. */
export interface CallOptions {
  attempt?: number;
  replay?: boolean;
  probe?: boolean;
}

/** Calls the agent at url. Members of an event that you do not give have the values of a sample. */
export interface Sender {
  sendFeedback(url: string, feedback?: Partial<Feedback>, options?: CallOptions): Promise<Answer>;
  sendRevocation(url: string, revocation?: Partial<Revocation>, options?: CallOptions): Promise<Answer>;
  sendResponse(url: string, response?: Partial<FeedbackResponse>, options?: CallOptions): Promise<Answer>;
  sendValidation(url: string, validation?: Partial<Validation>, options?: CallOptions): Promise<Answer>;
  /** Sends several pieces of feedback in one call. */
  sendBatch(url: string, deliveries: Partial<Feedback>[], options?: CallOptions): Promise<Answer>;
}

/** A Sender that signs its requests. */
export interface FakeHerald extends Sender {
  /** The option herald of onlyHerald. */
  url: string;
  /** The option fetch of onlyHerald: it returns the public key. */
  fetch(url: string): Promise<Response>;
  /** Returns a signed copy of a request. */
  sign: Sign;
}

type Sign = (request: Request) => Promise<Request>;

const revision = "2025-11-25";
const callTime = 30_000; // milliseconds, as Herald waits
const maxAnswer = 1 << 20;
const signatureLifetime = 300; // seconds
const client = "0x1111111111111111111111111111111111111111";

const event = {
  agentId: "42",
  agentRegistry: "eip155:8453:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432",
  chainId: 8453,
  blockNumber: 1,
  timestamp: 1_790_000_000,
  transactionHash: "0x" + "ab".repeat(32),
  logIndex: 0,
};
const file = { fileContent: null, fileVerification: "not_given", fileSource: null } as const;
const response = { ...event, ...file, responseUri: null, responseHash: null };

/** Returns the rating of a feedback. If a test gives only score or only value, the other one follows from it. */
function newRating(given: Partial<Feedback>): Pick<Feedback, "score" | "value" | "valueDecimals"> {
  if (given.value === undefined) {
    const score = String(given.score ?? 95);
    const decimals = score.split(".")[1]?.length ?? 0;
    const valueDecimals = given.valueDecimals ?? decimals;
    const zeros = "0".repeat(Math.max(0, valueDecimals - decimals));
    return { score: Number(score), value: String(BigInt(score.replace(".", "") + zeros)), valueDecimals };
  }
  const { value, valueDecimals = 0 } = given;
  const score = Number(value) / 10 ** valueDecimals;
  return { score: score >= 0 && score <= 100 ? score : undefined, value, valueDecimals };
}

const newFeedback = (given: Partial<Feedback>): Feedback => ({
  ...event,
  ...file,
  tag1: "quality",
  tag2: "",
  clientAddress: client,
  feedbackIndex: 1,
  fileUri: null,
  fileHash: null,
  endpoint: "",
  deliveryId: crypto.randomUUID(),
  ...newRating(given),
  ...given,
});
const newRevocation = (given: Partial<Revocation>): Revocation => ({
  ...event,
  clientAddress: client,
  feedbackIndex: 1,
  reason: "client",
  retracts: null,
  deliveryId: crypto.randomUUID(),
  ...given,
});
const newResponse = (given: Partial<FeedbackResponse>): FeedbackResponse => ({
  ...response,
  clientAddress: client,
  feedbackIndex: 1,
  responder: client,
  deliveryId: crypto.randomUUID(),
  ...given,
});
const newValidation = (given: Partial<Validation>): Validation => ({
  ...response,
  validatorAddress: client,
  response: 100,
  tag: "",
  requestHash: "0x" + "cd".repeat(32),
  deliveryId: crypto.randomUUID(),
  ...given,
});

/** These send unsigned requests. */
export const { sendFeedback, sendRevocation, sendResponse, sendValidation, sendBatch } = newSender();

/** Returns a Herald that signs. address is its HERALD_PUBLIC_URL, which need not exist if onlyHerald has its fetch. */
export async function createHerald(address = "https://herald.example"): Promise<FakeHerald> {
  const url = checkAddress("address", address);
  const pair = (await crypto.subtle.generateKey("Ed25519", true, ["sign", "verify"])) as CryptoKeyPair;
  const { x } = await crypto.subtle.exportKey("jwk", pair.publicKey);
  const keyId = await keyThumbprint(x!);
  const sign: Sign = async (request) => {
    const [headers, body] = [new Headers(request.headers), new Uint8Array(await request.arrayBuffer())];
    headers.set("signature-agent", `sig1="${url}"`);
    if (body.length > 0) headers.set("content-digest", await digestBody(body));
    const fields = [...headers.keys()].filter((name) => /^(content-digest|content-type|mcp-.*)$/.test(name));
    const values = new Map([
      ['"@method"', request.method],
      ['"@target-uri"', request.url],
      ...fields.map((name) => [`"${name}"`, headers.get(name)!] as const),
      ['"signature-agent";key="sig1"', `"${url}"`],
    ]);
    const created = Math.floor(Date.now() / 1000);
    const nonce = encodeBase64(crypto.getRandomValues(new Uint8Array(18)));
    const times = `created=${created};expires=${created + signatureLifetime};nonce="${nonce}"`;
    const input = `(${[...values.keys()].join(" ")});${times};alg="ed25519";tag="web-bot-auth";keyid="${keyId}"`;
    const base = [...values]
      .map(([name, value]) => `${name}: ${value}`)
      .concat(`"@signature-params": ${input}`)
      .join("\n");
    const signature = await crypto.subtle.sign("Ed25519", pair.privateKey, new TextEncoder().encode(base));
    headers.set("signature-input", `sig1=${input}`);
    headers.set("signature", `sig1=:${encodeBase64(new Uint8Array(signature))}:`);
    return new Request(request.url, { method: request.method, headers, body: body.length > 0 ? body : null });
  };
  const directory = { keys: [{ kty: "OKP", crv: "Ed25519", kid: keyId, x, use: "sig" }] };
  return {
    ...newSender(sign),
    url,
    sign,
    fetch: async (address) =>
      address === url + directoryPath ? Response.json(directory) : new Response(null, { status: 404 }),
  };
}

function newSender(sign?: Sign): Sender {
  const sender =
    <Event extends { deliveryId: string }>(tool: string, newEvent: (given: Partial<Event>) => Event) =>
    (url: string, given: Partial<Event> = {}, options: CallOptions = {}) => {
      const args = newEvent({ deliveryId: newDeliveryId(options), ...given });
      return callTool(url, tool, args, describeCall(args.deliveryId, options), sign);
    };
  return {
    sendFeedback: sender("agent.receiveFeedback", newFeedback),
    sendRevocation: sender("agent.receiveRevocation", newRevocation),
    sendResponse: sender("agent.receiveResponse", newResponse),
    sendValidation: sender("agent.receiveValidation", newValidation),
    async sendBatch(url, given, options = {}) {
      const deliveries = given.map((one, i) =>
        newFeedback({ feedbackIndex: i + 1, deliveryId: newDeliveryId(options), ...one }),
      );
      const answer = await callTool(
        url,
        "agent.receiveFeedbackBatch",
        { deliveries },
        deliveries.map((d) => describeCall(d.deliveryId, options)),
        sign,
      );
      return answer.outcome === "delivered" ? { ...answer, results: JSON.parse(answer.text).results } : answer;
    },
  };
}

function newDeliveryId({ probe }: CallOptions): string {
  const id = crypto.randomUUID();
  return probe ? probePrefix + id.slice(-12) : id;
}

function describeCall(id: string, { attempt = 1, replay = false, probe }: CallOptions): object {
  return { id, attempt, replay, ...(probe ? { probe } : {}) };
}

/** Opens a session, calls the tool and closes the session. */
async function callTool(url: string, tool: string, args: object, delivery: object, sign?: Sign): Promise<Answer> {
  const headers: Record<string, string> = { accept: "application/json, text/event-stream" };
  const post = (message: object) => sendMessage("POST", url, headers, { jsonrpc: "2.0", ...message }, sign);
  const opened = await post({
    id: 1,
    method: "initialize",
    params: { protocolVersion: revision, capabilities: {}, clientInfo: { name: "herald-fake", version: "0" } },
  });
  if (!opened.message?.result) return opened.answer;
  headers["mcp-protocol-version"] = opened.message.result.protocolVersion ?? revision;
  if (opened.session) headers["mcp-session-id"] = opened.session;
  await post({ method: "notifications/initialized" });
  const called = await post({
    id: 2,
    method: "tools/call",
    params: { name: tool, arguments: args, _meta: { "io.agentherald/delivery": delivery } },
  });
  if (opened.session) await sendMessage("DELETE", url, headers, undefined, sign);
  return called.answer;
}

interface Message {
  id?: unknown;
  result?: { protocolVersion?: string; isError?: boolean; content?: { text?: string }[] };
  error?: { code: number; message: string };
}

interface Exchange {
  answer: Answer;
  message?: Message;
  session?: string;
}

async function sendMessage(
  method: string,
  url: string,
  common: Record<string, string>,
  message: object | undefined,
  sign?: Sign,
): Promise<Exchange> {
  const headers = message ? { ...common, "content-type": "application/json" } : common;
  const request = new Request(url, { method, headers, body: message && JSON.stringify(message) });
  const response = await fetch(sign ? await sign(request) : request, {
    redirect: "manual",
    signal: AbortSignal.timeout(callTime),
  });
  const text = new TextDecoder().decode(await readBody(response.body, maxAnswer));
  const reply = parseReply(response.headers.get("content-type") ?? "", text);
  return {
    answer: judgeReply(response.status, reply, text),
    message: reply,
    session: response.headers.get("mcp-session-id") ?? undefined,
  };
}

/** Returns the answer in a body of JSON or of server-sent events. */
function parseReply(type: string, text: string): Message | undefined {
  const lines = type.startsWith("text/event-stream")
    ? text
        .split("\n")
        .filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5))
    : [text];
  for (const line of lines) {
    try {
      const message = JSON.parse(line) as Message;
      if (message.result || message.error) return message;
    } catch {
      // not an answer
    }
  }
  return undefined;
}

/** JSON-RPC errors after which Herald does not send a delivery again. */
const finalCodes = [-32700, -32600, -32601, -32602, -32020, -32021, -32022];

/** Judges an answer as docs/agent.md and docs/reference/tool-calls.md do. */
function judgeReply(status: number, reply: Message | undefined, body: string): Answer {
  if (status === 401 || status === 403) return { outcome: "held", text: body };
  if (status === 408 || status === 425 || status === 429 || status >= 500) return { outcome: "waits", text: body };
  if (status === 404 && !finalCodes.includes(reply?.error?.code ?? 0)) return { outcome: "waits", text: body };
  if (status >= 300) return { outcome: "rejected", text: body };
  if (reply?.error)
    return { outcome: finalCodes.includes(reply.error.code) ? "rejected" : "waits", text: reply.error.message };
  if (!reply?.result) return { outcome: "waits", text: body };
  return { outcome: reply.result.isError ? "rejected" : "delivered", text: reply.result.content?.[0]?.text ?? "" };
}
