// The bridge with which Herald is compared: every POST creates an MCP client, connects it, calls one tool and closes it.
//
//   POST /mcp/call {"url": …, "tool": …, "arguments": …, "meta": …}
import express from 'express';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const patience = 30_000; // ms for one tool call

async function callTool(client, params) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${patience} ms`)), patience);
  });
  try {
    return await Promise.race([client.callTool(params), late]);
  } finally {
    clearTimeout(timer);
  }
}

const app = express();
app.use(express.json({ limit: '1mb' }));
app.post('/mcp/call', async (req, res) => {
  const { url, tool, arguments: input, meta } = req.body;
  const client = new Client({ name: 'bridge', version: '1.0.0' });
  try {
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    res.json({ result: await callTool(client, { name: tool, arguments: input, _meta: meta }) });
  } catch (err) {
    res.status(502).json({ error: String(err) });
  } finally {
    await client.close().catch(() => {});
  }
});

const listener = app.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${listener.address().port}/mcp/call`));
