import {
  receiveFeedback,
  receiveFeedbackBatch,
  receiveResponse,
  receiveRevocation,
  receiveValidation,
} from "./events.js";
import type { Feedback, FeedbackResponse, Revocation, Validation } from "./events.js";
import { type JsonSchema, objectSchema } from "./schema.js";
import { type DeliveryStore, defaultStore } from "./store.js";

/** The description of a call that Herald sends in _meta. FastMCP passes only the id to a tool. */
export interface Delivery {
  /** The same for every attempt and every replay of a delivery. */
  id: string;
  /** The subject of the event: registry, agent, client, index, kind. */
  key?: string;
  attempt?: number;
  /** An operator requested this delivery again. */
  replay?: boolean;
  /** Herald removed characters from texts that strangers wrote. */
  sanitized?: boolean;
}

/** Handles one event. If it returns a text, or a promise of one, that text is the answer for Herald's operator. */
export type Handler<Event> = (event: Event, delivery: Delivery) => unknown;

/** The handlers of an agent. Herald sends an event only if the agent has its handler. */
export interface Handlers {
  onFeedback: Handler<Feedback>;
  onRevocation?: Handler<Revocation>;
  onResponse?: Handler<FeedbackResponse>;
  onValidation?: Handler<Validation>;
  /** Stores the processed deliveries. Default: the last 10,000 of this process, in memory. */
  store?: DeliveryStore;
  /** Called with every error of a handler or of the store, except Rejection. Default: console.error. */
  onError?: (error: unknown, delivery: Delivery) => void;
}

/** A handler throws Rejection for a delivery that it will never accept. Herald does not send it again. */
export class Rejection extends Error {
  override name = "Rejection";
}

/** Thrown by Tool.call if Herald has to send the delivery again. */
export class Retry extends Error {
  override name = "Retry";
}

/** The result of a tool call in MCP form. */
export interface ToolResult {
  [member: string]: unknown;
  content: { type: "text"; text: string }[];
  isError?: boolean;
}

/** A tool that Herald calls. call throws Retry. */
export interface Tool {
  name: string;
  description: string;
  schema: JsonSchema;
  call(args: unknown, meta?: Record<string, unknown>): Promise<ToolResult>;
}

type Outcome = { status: "accepted"; answer: string } | { status: "rejected" | "retry"; error: string };

// The ids of an operator's samples begin so. Their events never happened, so no handler is called.
export const probePrefix = "70726f62-6500-8000-8000-";
const maxAnswer = 16_384; // characters; Herald stores 16 KiB
// A call may last 30 seconds. A batch stops before that, so that its answer arrives.
const batchTime = 15_000;
// A call for a delivery whose handler is running waits that long for its outcome.
const waitTime = 20_000;

/** Returns the tools for which there is a handler. */
export function toolsOf(handlers: Handlers): Tool[] {
  const tools = [singleTool(receiveFeedback, handlers, handlers.onFeedback), batchTool(handlers)];
  if (handlers.onRevocation) tools.push(singleTool(receiveRevocation, handlers, handlers.onRevocation));
  if (handlers.onResponse) tools.push(singleTool(receiveResponse, handlers, handlers.onResponse));
  if (handlers.onValidation) tools.push(singleTool(receiveValidation, handlers, handlers.onValidation));
  return tools;
}

function singleTool<Event extends { deliveryId: string }>(
  schema: JsonSchema,
  handlers: Handlers,
  handler: Handler<Event>,
): Tool {
  return newTool<Event>(schema, async (event, meta) => {
    const outcome = await processOnce(handlers, handler, event, describeDelivery(event.deliveryId, meta));
    if (outcome.status === "retry") throw new Retry(outcome.error);
    return outcome.status === "accepted" ? textResult(outcome.answer) : { ...textResult(outcome.error), isError: true };
  });
}

function batchTool(handlers: Handlers): Tool {
  return newTool<{ deliveries: Feedback[] }>(receiveFeedbackBatch, async ({ deliveries }, meta) => {
    const stopAt = Date.now() + batchTime;
    const waiting = new Set<string>(); // clients whose earlier feedback Herald sends again: their order stays
    const results = [];
    for (const [i, feedback] of deliveries.entries()) {
      const client = [feedback.agentRegistry, feedback.agentId, feedback.clientAddress].join("/").toLowerCase();
      let outcome: Outcome;
      if (waiting.has(client)) outcome = { status: "retry", error: "an earlier feedback of this client waits" };
      else if (Date.now() >= stopAt) outcome = { status: "retry", error: "the batch took too long" };
      else
        outcome = await processOnce(
          handlers,
          handlers.onFeedback,
          feedback,
          describeDelivery(feedback.deliveryId, meta, i),
          stopAt - Date.now(),
        );
      if (outcome.status === "retry") waiting.add(client);
      const error = outcome.status === "accepted" ? undefined : outcome.error;
      results.push({ deliveryId: feedback.deliveryId, status: outcome.status, error });
    }
    return textResult(JSON.stringify({ results }));
  });
}

function newTool<Args>(
  schema: JsonSchema,
  call: (args: Args, meta?: Record<string, unknown>) => Promise<ToolResult>,
): Tool {
  const input = objectSchema(schema);
  return {
    name: schema.title!,
    description: schema.description!,
    schema,
    async call(args, meta) {
      if (meta?.["io.agentherald/direct"])
        return { ...textResult("this is no delivery: Herald verified nothing in it"), isError: true };
      const parsed = input.safeParse(args);
      if (!parsed.success)
        return { ...textResult(`the arguments do not match the schema: ${parsed.error.message}`), isError: true };
      return call(parsed.data as Args, meta);
    },
  };
}

/** Reads the entry of this delivery in _meta. In a batch, _meta has a list in the order of the deliveries. */
function describeDelivery(
  id: string,
  meta: Record<string, unknown> | undefined,
  position?: number,
): Delivery & { probe: boolean } {
  const told = meta?.["io.agentherald/delivery"];
  const entry = position === undefined ? told : Array.isArray(told) ? told[position] : undefined;
  const { key, attempt, replay, sanitized, probe } = (entry ?? {}) as Partial<Delivery & { probe: boolean }>;
  return { id, key, attempt, replay, sanitized, probe: probe === true || id.startsWith(probePrefix) };
}

// Deliveries in progress in this process. Registrations share them, because each may have a store object of its own.
const running = new Map<string, Promise<Outcome>>();

/**
 * Calls the handler unless the delivery was processed. A second call during the first waits for its outcome, at most
 * wait milliseconds: the handler is never called twice at the same time, even if it never ends.
 */
async function processOnce<Event>(
  handlers: Handlers,
  handler: Handler<Event>,
  event: Event,
  { probe, ...delivery }: Delivery & { probe: boolean },
  wait = waitTime,
): Promise<Outcome> {
  if (probe) return { status: "accepted", answer: '{"acknowledged":true,"probe":true}' };
  const earlier = running.get(delivery.id);
  if (earlier) return awaitOutcome(earlier, wait);
  const outcome = processEvent(handlers, handler, event, delivery).finally(() => running.delete(delivery.id));
  running.set(delivery.id, outcome);
  return outcome;
}

/** Returns the outcome of a call; retry if the call takes longer than wait milliseconds. */
function awaitOutcome(outcome: Promise<Outcome>, wait: number): Promise<Outcome> {
  let timer: ReturnType<typeof setTimeout>;
  const late = new Promise<Outcome>((resolve) => {
    const error = "an earlier call for the delivery is still running: send it again";
    timer = setTimeout(() => resolve({ status: "retry", error }), wait);
  });
  return Promise.race([outcome, late]).finally(() => clearTimeout(timer));
}

async function processEvent<Event>(
  handlers: Handlers,
  handler: Handler<Event>,
  event: Event,
  delivery: Delivery,
): Promise<Outcome> {
  const store = handlers.store ?? defaultStore;
  try {
    const known = await store.get(delivery.id);
    if (known !== undefined && known !== null) return { status: "accepted", answer: known };
    const text = await handler(event, delivery);
    const answer = typeof text === "string" ? text.slice(0, maxAnswer) : '{"acknowledged":true}';
    await store.put(delivery.id, answer);
    return { status: "accepted", answer };
  } catch (error) {
    if (error instanceof Rejection) return { status: "rejected", error: error.message };
    report(handlers.onError ?? logError, error, delivery);
    return { status: "retry", error: "the agent could not process the delivery: send it again" };
  }
}

function report(onError: NonNullable<Handlers["onError"]>, error: unknown, delivery: Delivery): void {
  try {
    onError(error, delivery);
  } catch (second) {
    logError(second, delivery);
  }
}

function logError(error: unknown, delivery: Delivery): void {
  console.error(`delivery ${delivery.id}:`, error);
}

function textResult(text: string): ToolResult {
  return { content: [{ type: "text", text }] };
}
