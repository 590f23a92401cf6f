/** A refused request: the status to answer with, and the cause. */
export class Refusal extends Error {
  override name = "Refusal";
  constructor(
    readonly status: 401 | 413 | 503,
    message: string,
  ) {
    super(message);
  }

  get headers(): Record<string, string> {
    const type = { "Content-Type": "text/plain; charset=utf-8" };
    return this.status === 503 ? { ...type, "Retry-After": "10" } : type;
  }

  toResponse(): Response {
    return new Response(this.message, { status: this.status, headers: this.headers });
  }
}

/** Reads a body of at most limit bytes. Throws Refusal for a longer one, of which it reads no more. */
export async function readBody(body: AsyncIterable<Uint8Array> | null, limit: number): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of body ?? []) {
    size += chunk.length;
    if (size > limit) throw new Refusal(413, `the body has more than ${limit} bytes`);
    chunks.push(chunk);
  }
  const whole = new Uint8Array(size);
  let offset = 0;
  for (const chunk of chunks) {
    whole.set(chunk, offset);
    offset += chunk.length;
  }
  return whole;
}

export function encodeBase64(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes));
}

export function decodeBase64(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

export async function hashSha256(bytes: Uint8Array): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes as BufferSource));
}

/** Returns the value of Content-Digest (RFC 9530). */
export async function digestBody(body: Uint8Array): Promise<string> {
  return `sha-256=:${encodeBase64(await hashSha256(body))}:`;
}
