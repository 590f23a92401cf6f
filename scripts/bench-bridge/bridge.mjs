// The bridge with which Herald is compared: every POST creates an MCP client, connects it, calls one tool and closes it.
//
//   POST /mcp/call {"url": …} or {"command": …, "args": […]}, with "tool" and "arguments"
import express from 'express';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const patience = 30_000; // ms for one tool call

async function callTool(client, name, args) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${patience} ms`)), patience);
  });
  try {
    return await Promise.race([client.callTool({ name, arguments: args }), late]);
  } finally {
    clearTimeout(timer);
  }
}

const app = express();
app.use(express.json({ limit: '1mb' }));
app.post('/mcp/call', async (req, res) => {
  const { url, command, args, tool, arguments: input } = req.body;
  const client = new Client({ name: 'bridge', version: '1.0.0' });
  try {
    await client.connect(url ? new StreamableHTTPClientTransport(new URL(url)) : new StdioClientTransport({ command, args }));
    res.json({ result: await callTool(client, tool, input) });
  } catch (err) {
    res.status(502).json({ error: String(err) });
  } finally {
    await client.close().catch(() => {});
  }
});

const listener = app.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${listener.address().port}/mcp/call`));
