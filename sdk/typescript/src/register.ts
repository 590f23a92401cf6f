import { type Handlers, Retry, type Tool, type ToolResult, toolsOf } from "./receive.js";
import { objectSchema } from "./schema.js";

/** An McpServer of @modelcontextprotocol/server 2 or of @modelcontextprotocol/sdk 1. */
export interface OfficialServer {
  // The SDKs declare generic types for each schema library. Both accept a Zod object.
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  registerTool(name: string, config: any, callback: any): unknown;
  server: object;
}

/** A FastMCP of fastmcp 4. */
export interface FastMcpServer {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  addTool(tool: any): void;
}

/** Registers the tools that Herald calls: those of your handlers, and agent.receiveFeedbackBatch. */
export function registerHerald(server: OfficialServer | FastMcpServer, handlers: Handlers): void {
  if (typeof handlers.onFeedback !== "function") throw new TypeError("registerHerald needs a handler onFeedback");
  for (const tool of toolsOf(handlers)) {
    if ("registerTool" in server) addToOfficial(server, tool);
    else addToFastMcp(server, tool);
  }
}

/** The members of a request's context that the two major versions pass to a tool. */
interface CallContext {
  _meta?: Record<string, unknown>;
  mcpReq?: { _meta?: Record<string, unknown> };
}

function addToOfficial(server: OfficialServer, tool: Tool): void {
  const config = { description: tool.description, inputSchema: objectSchema(tool.schema) };
  server.registerTool(tool.name, config, async (args: unknown, context: CallContext) => {
    try {
      return await tool.call(args, context.mcpReq?._meta ?? context._meta);
    } catch (error) {
      if (!(error instanceof Retry)) throw error;
      return failWithRetry((server.server as { transport?: Transport }).transport, error);
    }
  });
}

interface Message {
  id?: unknown;
  result?: { _meta?: Record<string, unknown>; content?: { text?: string }[] };
}

interface Transport {
  send(message: unknown, options?: unknown): Promise<void>;
}

const retryMark = "io.agentherald/retry";
const marking = new WeakSet<Transport>(); // transports that replace marked results

/**
 * Answers a call with a JSON-RPC error, after which Herald sends the delivery again. The SDKs turn every exception of a
 * tool into a result with isError, after which Herald would not. So the result gets a mark, and the transport sends an
 * error instead of a result with the mark.
 */
function failWithRetry(transport: Transport | undefined, error: Retry): ToolResult {
  if (transport && !marking.has(transport)) {
    marking.add(transport);
    const send = transport.send.bind(transport);
    transport.send = (message, options) => {
      const { id, result } = message as Message;
      if (result?._meta?.[retryMark] !== true) return send(message, options);
      return send({ jsonrpc: "2.0", id, error: { code: -32603, message: result.content?.[0]?.text ?? "" } }, options);
    };
  }
  return { content: [{ type: "text", text: error.message }], isError: true, _meta: { [retryMark]: true } };
}

/**
 * FastMCP answers every exception of execute with isError too. An exception of the arguments' validation becomes a
 * JSON-RPC error. So the call happens there, and execute returns its result.
 */
function addToFastMcp(server: FastMcpServer, tool: Tool): void {
  const parameters = {
    "~standard": {
      version: 1,
      vendor: "agentherald",
      validate: async (args: unknown) => ({ value: await tool.call(args) }),
      jsonSchema: { input: () => tool.schema, output: () => tool.schema },
    },
  };
  server.addTool({
    name: tool.name,
    description: tool.description,
    parameters,
    execute: async (result: ToolResult) => result,
  });
}
