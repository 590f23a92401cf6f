// An agent that uses @agentherald/receiver: node receiver.mjs KIND PORT. Its handlers print one line for each call.
// They fail at the first call with tag1 "late".
import { createServer } from "node:http";
import { registerHerald } from "@agentherald/receiver";

const [kind, port] = [process.argv[2], Number(process.argv[3])];
let failed = false;
const handlers = {
  onFeedback({ clientAddress, feedbackIndex, tag1 }, { attempt }) {
    console.log("feedback", clientAddress.toLowerCase(), feedbackIndex, tag1, attempt ?? "-");
    if (tag1 === "late" && !failed) {
      failed = true;
      throw new Error("not yet");
    }
  },
  onRevocation: ({ clientAddress, feedbackIndex, reason }) =>
    console.log("revocation", clientAddress.toLowerCase(), feedbackIndex, reason),
};
const identity = { name: kind, version: "1.0.0" };

if (kind === "sdk1") {
  const { McpServer } = await import("@modelcontextprotocol/sdk/server/mcp.js");
  const { StreamableHTTPServerTransport } = await import("@modelcontextprotocol/sdk/server/streamableHttp.js");
  createServer(async (request, response) => {
    const server = new McpServer(identity);
    registerHerald(server, handlers);
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
    await server.connect(transport);
    await transport.handleRequest(request, response);
  }).listen(port, "127.0.0.1");
} else if (kind === "sdk2") {
  const { createMcpHandler, McpServer } = await import("@modelcontextprotocol/server");
  const { toNodeHandler } = await import("@modelcontextprotocol/node");
  const handler = createMcpHandler(() => {
    const server = new McpServer(identity);
    registerHerald(server, handlers);
    return server;
  });
  createServer(toNodeHandler(handler)).listen(port, "127.0.0.1");
} else {
  const { FastMCP } = await import("fastmcp");
  const server = new FastMCP(identity);
  registerHerald(server, handlers);
  await server.start({ transportType: "httpStream", httpStream: { port, host: "127.0.0.1" } });
}
