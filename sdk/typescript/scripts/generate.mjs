// Writes src/events.ts from the schemas in docs/tools: the types that handlers receive, and the schemas themselves.
import { readFileSync, writeFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import { fileURLToPath } from "node:url";

const tools = {
  Feedback: "receiveFeedback",
  Revocation: "receiveRevocation",
  FeedbackResponse: "receiveResponse",
  Validation: "receiveValidation",
};
const target = new URL("../src/events.ts", import.meta.url);

const readSchema = (tool) =>
  JSON.parse(readFileSync(new URL(`../../../docs/tools/agent.${tool}.schema.json`, import.meta.url), "utf8"));

function typeOf(property) {
  if (property.enum) return property.enum.map((value) => JSON.stringify(value)).join(" | ");
  const names = { integer: "number", number: "number", string: "string", null: "null" };
  return property.type === undefined
    ? "unknown"
    : [property.type]
        .flat()
        .map((name) => names[name])
        .join(" | ");
}

function writeInterface(name, schema) {
  const lines = [`/** ${schema.description} */`, `export interface ${name} {`];
  for (const [key, property] of Object.entries(schema.properties)) {
    if (property.description) lines.push(`  /** ${property.description} */`);
    lines.push(`  ${key}${schema.required.includes(key) ? "" : "?"}: ${typeOf(property)};`);
  }
  return lines.concat("}").join("\n");
}

/** Returns a schema as a TypeScript constant, one line for each property. */
function writeConstant(tool, { properties, ...schema }) {
  const head = JSON.stringify(schema).slice(0, -1) + ',"properties":{';
  const lines = Object.entries(properties).map(
    ([name, property]) => `  ${JSON.stringify(name)}: ${JSON.stringify(property)},`,
  );
  return [`export const ${tool}: JsonSchema = ${head}`, ...lines, "}};"].join("\n");
}

/** Returns the text of src/events.ts. */
export function generate() {
  const parts = [
    "// Generated from docs/tools by scripts/generate.mjs. Do not edit.",
    'import type { JsonSchema } from "./schema.js";',
  ];
  for (const [name, tool] of Object.entries(tools)) parts.push(writeInterface(name, readSchema(tool)));
  for (const tool of Object.values(tools)) parts.push(writeConstant(tool, readSchema(tool)));
  const batch = readSchema("receiveFeedbackBatch");
  const { $schema, ...element } = readSchema("receiveFeedback");
  if (!isDeepStrictEqual(batch.properties.deliveries.items, element))
    throw new Error("the items of the batch are not the feedback");
  batch.properties.deliveries.items = "feedback";
  return (
    parts.concat(writeConstant("receiveFeedbackBatch", batch).replace('"feedback"', "receiveFeedback")).join("\n\n") +
    "\n"
  );
}

if (process.argv[1] === fileURLToPath(import.meta.url)) writeFileSync(target, generate());
