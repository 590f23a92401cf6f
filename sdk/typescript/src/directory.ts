import { encodeBase64, hashSha256, readBody, Refusal } from "./http.js";

export const directoryPath = "/.well-known/http-message-signatures-directory";

const maxBytes = 64 << 10;
const maxKeys = 32;
const fetchTime = 5_000; // milliseconds, as all below
const keysAge = 300_000; // after it, a key that is no longer published is refused
const fetchPause = 10_000; // between two fetches, because anybody can send unknown key ids

/** Caches the keys that Herald publishes. */
export class KeyDirectory {
  #url: string;
  #fetch: (url: string, init?: RequestInit) => Promise<Response>;
  #now: () => number;
  #keys = new Map<string, CryptoKey>();
  #fetched = -Infinity; // the last success
  #tried = -Infinity;
  #fetching?: Promise<void>;

  constructor(herald: string, fetch: (url: string, init?: RequestInit) => Promise<Response>, now: () => number) {
    this.#url = herald + directoryPath;
    this.#fetch = fetch;
    this.#now = now;
  }

  /** Returns the key. Fetches the directory for an unknown key and for old keys. If that fails, known keys stay valid. */
  async find(id: string): Promise<CryptoKey> {
    const old = !this.#keys.has(id) || this.#now() - this.#fetched > keysAge;
    if (old && this.#now() - this.#tried >= fetchPause) {
      this.#tried = this.#now();
      this.#fetching = this.#refresh().finally(() => (this.#fetching = undefined));
    }
    await this.#fetching;
    const key = this.#keys.get(id);
    if (key) return key;
    if (this.#fetched < this.#tried) throw new Refusal(503, "the keys of Herald cannot be fetched now");
    throw new Refusal(401, "the signature's key is not Herald's");
  }

  async #refresh(): Promise<void> {
    const tried = this.#tried;
    try {
      // Workers of Cloudflare know no redirect: "error".
      const response = await this.#fetch(this.#url, { redirect: "manual", signal: AbortSignal.timeout(fetchTime) });
      if (response.status !== 200) return;
      const { keys } = JSON.parse(new TextDecoder().decode(await readBody(response.body, maxBytes))) as {
        keys: JsonWebKey[];
      };
      const found = new Map<string, CryptoKey>();
      for (const { kty, crv, x } of keys.slice(0, maxKeys)) {
        if (kty !== "OKP" || crv !== "Ed25519" || typeof x !== "string") continue;
        found.set(
          await keyThumbprint(x),
          await crypto.subtle.importKey("jwk", { kty, crv, x }, "Ed25519", false, ["verify"]),
        );
      }
      this.#keys = found;
      this.#fetched = tried;
    } catch {
      // The known keys remain valid.
    }
  }
}

/** Returns the id of a public key: its thumbprint (RFC 7638; for Ed25519 RFC 8037, appendix A.3). */
export async function keyThumbprint(x: string): Promise<string> {
  const sum = await hashSha256(new TextEncoder().encode(JSON.stringify({ crv: "Ed25519", kty: "OKP", x })));
  return encodeBase64(sum).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}
