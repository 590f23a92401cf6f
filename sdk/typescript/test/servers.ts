// Starts each supported MCP server on a free port of this machine.
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { randomUUID } from "node:crypto";
import type { TestContext } from "node:test";

import { type Handlers, registerHerald } from "@agentherald/receiver";
import { toNodeHandler } from "@modelcontextprotocol/node";
import { McpServer as McpServer1 } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { createMcpHandler, McpServer as McpServer2 } from "@modelcontextprotocol/server";
import express, { type RequestHandler } from "express";
import { FastMCP } from "fastmcp";

const identity = { name: "agent", version: "1.0.0" };

export async function listen(t: TestContext, server: Server): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** SDK 1 without sessions: a server for each request. */
export function startSdk1(
  t: TestContext,
  handlers: Handlers,
  guard?: RequestHandler,
  enableJsonResponse = true,
  framework = express,
): Promise<string> {
  const app = framework();
  if (guard) app.use(guard);
  app.use(framework.json({ limit: "8mb" }));
  app.post("/mcp", async (request, response) => {
    const server = new McpServer1(identity);
    registerHerald(server, handlers);
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined, enableJsonResponse });
    response.on("close", () => void server.close());
    await server.connect(transport);
    await transport.handleRequest(request, response, request.body);
  });
  return listen(t, createServer(app)).then((origin) => origin + "/mcp");
}

/** SDK 1 with a session, whose answers are server-sent events. */
export async function startSdk1Session(t: TestContext, handlers: Handlers): Promise<string> {
  const sessions = new Map<string, StreamableHTTPServerTransport>();
  const origin = await listen(
    t,
    createServer(async (request, response) => {
      let transport = sessions.get(String(request.headers["mcp-session-id"]));
      if (!transport) {
        const opened = new StreamableHTTPServerTransport({
          sessionIdGenerator: randomUUID,
          onsessioninitialized: (id) => void sessions.set(id, opened),
        });
        const server = new McpServer1(identity);
        registerHerald(server, handlers);
        await server.connect(opened);
        transport = opened;
      }
      await transport.handleRequest(request, response);
    }),
  );
  return origin + "/mcp";
}

type FetchHandler = (request: Request) => Response | Promise<Response>;

const limits = { maxRequestBodySize: 8 << 20 };

export function sdk2Handler(handlers: Handlers): FetchHandler {
  return createMcpHandler(
    () => {
      const server = new McpServer2(identity);
      registerHerald(server, handlers);
      return server;
    },
    limits,
  ).fetch;
}

/** Serves a fetch handler. */
export async function serveFetch(t: TestContext, handler: FetchHandler): Promise<string> {
  return (await listen(t, createServer(toNodeHandler({ fetch: async (request) => handler(request) }, limits)))) + "/mcp";
}

export const startSdk2 = (t: TestContext, handlers: Handlers) => serveFetch(t, sdk2Handler(handlers));

export async function startFastMcp(t: TestContext, handlers: Handlers, stateless = false): Promise<string> {
  t.mock.method(console, "log", () => {}); // its HTTP server logs each session
  const server = new FastMCP({
    name: "agent",
    version: "1.0.0",
    logger: { debug() {}, error() {}, info() {}, log() {}, warn() {} },
  });
  registerHerald(server, handlers);
  const probe = createServer();
  await new Promise<void>((resolve) => probe.listen(0, "127.0.0.1", resolve));
  const { port } = probe.address() as AddressInfo;
  await new Promise((resolve) => probe.close(resolve));
  await server.start({ transportType: "httpStream", httpStream: { port, host: "127.0.0.1", stateless } });
  t.after(() => server.stop());
  return `http://127.0.0.1:${port}/mcp`;
}

export const servers = {
  "SDK 1, no sessions, JSON": startSdk1,
  "SDK 1, sessions, events": startSdk1Session,
  "SDK 1, no sessions, events": (t: TestContext, handlers: Handlers) => startSdk1(t, handlers, undefined, false),
  "SDK 2": startSdk2,
  FastMCP: startFastMcp,
  "FastMCP, stateless": (t: TestContext, handlers: Handlers) => startFastMcp(t, handlers, true),
};
