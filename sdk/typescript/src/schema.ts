import * as z from "zod/v4";

/** The part of JSON Schema that the schemas of Herald's tools use. */
export interface JsonSchema {
  $schema?: string;
  title?: string;
  description?: string;
  type?: string | string[];
  enum?: (string | null)[];
  format?: string;
  pattern?: string;
  minimum?: number;
  maximum?: number;
  properties?: Record<string, JsonSchema>;
  required?: string[];
  additionalProperties?: boolean;
  items?: JsonSchema;
  minItems?: number;
  maxItems?: number;
}

/** Returns the Zod schema of an object. MCP SDKs list it as JSON Schema and validate arguments with it. */
export function objectSchema(schema: JsonSchema): z.ZodObject {
  const shape: Record<string, z.ZodType> = {};
  for (const [name, property] of Object.entries(schema.properties ?? {})) {
    const member = memberSchema(property);
    shape[name] = schema.required?.includes(name) ? member : member.optional();
  }
  return z.strictObject(shape);
}

function memberSchema(schema: JsonSchema): z.ZodType {
  const types = [schema.type ?? []].flat();
  const named = typedSchema(
    schema,
    types.find((type) => type !== "null"),
  );
  const member = types.includes("null") ? named.nullable() : named;
  return schema.description === undefined ? member : member.describe(schema.description);
}

function typedSchema(schema: JsonSchema, type: string | undefined): z.ZodType {
  switch (type) {
    case undefined:
      return z.unknown();
    case "object":
      return objectSchema(schema);
    case "array":
      return z
        .array(memberSchema(schema.items ?? {}))
        .min(schema.minItems ?? 0)
        .max(schema.maxItems ?? Infinity);
    case "integer":
    case "number": {
      const number = type === "integer" ? z.int() : z.number();
      return number.min(schema.minimum ?? -Infinity).max(schema.maximum ?? Infinity);
    }
    case "string":
      if (schema.enum) return z.enum(schema.enum.filter((value) => value !== null));
      if (schema.format === "uuid") return z.guid();
      return schema.pattern === undefined ? z.string() : z.string().regex(new RegExp(schema.pattern));
    default:
      throw new Error(`unknown type ${type} in a schema`);
  }
}
