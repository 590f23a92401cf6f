// What the old backend does: a job into the list, and a call through the bridge. It prints what came back as JSON.
// Arguments: the path of Redis' socket, Herald's address, its token, the agent's URL, which has a tool echo; the job is on stdin.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [socket, herald, token, agent] = process.argv.slice(2);
const { Redis } = createRequire(process.env.MODULES + "/")("ioredis");

const redis = new Redis(socket);
const length = await redis.lpush("action_jobs", readFileSync(0, "utf8"));
await redis.quit();

const call = async (endpoint, tool_name) => {
  const response = await fetch(herald + "/mcp/call", {
    method: "POST",
    headers: { "content-type": "application/json", authorization: "Bearer " + token },
    body: JSON.stringify({ endpoint, tool_name, arguments: { message: "feedback 95" }, timeout_ms: 30000 }),
  });
  return { status: response.status, body: await response.json() };
};
const endpoint = { transport: "http", url: agent, headers: { "X-Agent-Token": "token" } };
const answered = await call(endpoint, "echo");
const refused = await call(endpoint, "agent.deleteEverything");
console.log(JSON.stringify({ length, answered, refused }));
