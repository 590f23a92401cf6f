import { KeyDirectory } from "./directory.js";
import { decodeBase64, digestBody, Refusal } from "./http.js";

/** Configures the check of signatures. */
export interface SignatureOptions {
  /** The HERALD_PUBLIC_URL of the Herald that may call, such as https://herald.example. */
  herald: string;
  /** The scheme and host by which Herald calls this agent, as registered, and the path that a proxy removes, if any. */
  self: string;
  /** The maximum size of a request body, in bytes. Default: 8 MiB. */
  maxBody?: number;
  /** Fetches the keys of Herald. Default: the global fetch. */
  fetch?: (url: string, init?: RequestInit) => Promise<Response>;
  /** The clock, in milliseconds. Default: Date.now. */
  now?: () => number;
}

/** The parts of a request that a signature covers. */
export interface SignedRequest {
  method: string;
  /** The path and the query, as received. */
  target: string;
  headers: Headers;
  body: Uint8Array;
}

const skew = 60; // seconds between the clocks of Herald and the agent
const maxLifetime = 600; // seconds of a signature; Herald's are valid for 300
const maxCovered = 64; // parts of a request in one signature
const signer = '"signature-agent";key="sig1"';
const part = '"[a-z0-9@-]+"(?:;key="sig1")?';
const inputForm = new RegExp(
  `^sig1=(\\((${part}(?: ${part})*)\\)((?:;[a-z]+=(?:[0-9]{1,15}|"[!#-\\[\\]-~]{1,200}"))+))$`,
);
const encoder = new TextEncoder();

/** The parsed header Signature-Input. */
interface Input {
  text: string; // the value after sig1=
  covered: string[];
  parameters: Map<string, string>;
}

/** Verifies that requests come from one Herald: RFC 9421 with Ed25519. Accepts each signature once. */
export class SignatureVerifier {
  readonly maxBody: number;
  #herald: string;
  #self: string;
  #now: () => number;
  #keys: KeyDirectory;
  // Nonces with the second in which they expire. Only Herald can add one, since the signature is verified before.
  #nonces = new Map<string, number>();
  #swept = 0;

  constructor(options: SignatureOptions) {
    this.#herald = checkAddress("herald", options.herald);
    this.#self = checkAddress("self", options.self);
    this.maxBody = options.maxBody ?? 8 << 20;
    this.#now = options.now ?? Date.now;
    this.#keys = new KeyDirectory(this.#herald, options.fetch ?? ((url, init) => fetch(url, init)), this.#now);
  }

  /** Throws Refusal unless the request comes from Herald. */
  async verify(request: SignedRequest): Promise<void> {
    const input = parseInput(request.headers.get("signature-input") ?? "");
    checkCovered(request, input.covered);
    const expires = this.#checkTimes(input.parameters);
    const nonce = input.parameters.get("nonce") ?? "";
    if (
      input.parameters.get("alg") !== "ed25519" ||
      input.parameters.get("tag") !== "web-bot-auth" ||
      nonce.length < 16
    ) {
      throw new Refusal(401, "the alg, tag or nonce of the signature is not Herald's");
    }
    if (request.headers.get("signature-agent") !== `sig1="${this.#herald}"`)
      throw new Refusal(401, "the request names another signer");
    await checkDigest(request);
    const keyId = input.parameters.get("keyid") ?? "";
    const key = await this.#keys.find(keyId);
    if (!(await isSigned(key, this.#baseOf(request, input), request.headers.get("signature") ?? ""))) {
      throw new Refusal(
        401,
        `the signature does not match: the request was changed, or signed for another address than ${this.#self}`,
      );
    }
    if (!this.#remember(`${keyId} ${nonce}`, expires + skew)) throw new Refusal(401, "the request was sent before");
  }

  /** Returns the second in which the signature expires. */
  #checkTimes(parameters: Map<string, string>): number {
    const [created, expires, now] = [
      Number(parameters.get("created")),
      Number(parameters.get("expires")),
      this.#now() / 1000,
    ];
    if (!(created <= now + skew && created <= expires && expires - created <= maxLifetime)) {
      throw new Refusal(401, "the request was signed for another time: compare the clocks");
    }
    if (!(now < expires + skew)) throw new Refusal(401, "the signature has expired");
    return expires;
  }

  /** Returns the signature base (RFC 9421, section 2.5). */
  #baseOf(request: SignedRequest, input: Input): string {
    const values: Record<string, string> = {
      '"@method"': request.method,
      '"@target-uri"': this.#self + request.target,
      [signer]: `"${this.#herald}"`,
    };
    const lines = input.covered.map(
      (name) => `${name}: ${values[name] ?? (request.headers.get(name.slice(1, -1)) ?? "").trim()}`,
    );
    return [...lines, `"@signature-params": ${input.text}`].join("\n");
  }

  /** Stores a nonce. Returns false if it is stored already. */
  #remember(nonce: string, until: number): boolean {
    const now = this.#now() / 1000;
    if (now - this.#swept > skew) {
      for (const [stored, expires] of this.#nonces) if (expires <= now) this.#nonces.delete(stored);
      this.#swept = now;
    }
    if (this.#nonces.has(nonce)) return false;
    this.#nonces.set(nonce, until);
    return true;
  }
}

/** Returns an address as Herald writes it in signatures: as URL does, and without a dot or slash at the end. */
export function checkAddress(name: string, address: string): string {
  const url = URL.canParse(address) ? new URL(address) : undefined;
  if (!url || !/^https?:$/.test(url.protocol) || url.search || url.hash || url.username || url.password) {
    throw new TypeError(
      `${name} must be an http or https URL without query, such as https://agent.example: ${address}`,
    );
  }
  return url.origin.replace(/\.(?=(:[0-9]+)?$)/, "") + url.pathname.replace(/\/$/, "");
}

function parseInput(header: string): Input {
  const form = inputForm.exec(header);
  if (!form) throw new Refusal(401, "the request is not signed, or not as Herald signs");
  const list = [...form[3]!.matchAll(/;([a-z]+)=(?:"([^"]*)"|([0-9]+))/g)];
  const parameters = new Map(list.map((p) => [p[1]!, p[2] ?? p[3]!]));
  if (parameters.size !== list.length) throw new Refusal(401, "the signature has a parameter twice");
  return { text: form[1]!, covered: form[2]!.split(" "), parameters };
}

/** Checks that the signature covers all parts of the request that identify the call. */
function checkCovered(request: SignedRequest, covered: string[]): void {
  if (covered.length > maxCovered || new Set(covered).size !== covered.length) {
    throw new Refusal(401, "the signature covers a part twice, or too many parts");
  }
  const needed = ['"@method"', '"@target-uri"', signer];
  if (request.body.length > 0) needed.push('"content-digest"');
  for (const [name] of request.headers) {
    if (name === "content-type" || name === "content-digest" || name.startsWith("mcp-")) needed.push(`"${name}"`);
  }
  for (const name of needed)
    if (!covered.includes(name)) throw new Refusal(401, `the signature does not cover ${name}`);
  for (const name of covered) {
    if (!needed.includes(name) && !request.headers.has(fieldOf(name)))
      throw new Refusal(401, `the signature covers ${name}, which the request lacks`);
  }
}

// Headers throws on a name that is no header name, such as @authority.
function fieldOf(covered: string): string {
  const name = covered.slice(1, -1);
  return /^[a-z0-9-]+$/.test(name) ? name : "signature-input-part-of-no-header";
}

async function checkDigest(request: SignedRequest): Promise<void> {
  const told = request.headers.get("content-digest");
  if (told === null && request.body.length === 0) return;
  if (told !== (await digestBody(request.body))) throw new Refusal(401, "the body does not match Content-Digest");
}

async function isSigned(key: CryptoKey, base: string, header: string): Promise<boolean> {
  const signature = /^sig1=:([A-Za-z0-9+/=]{88}):$/.exec(header);
  if (!signature) return false;
  try {
    return await crypto.subtle.verify("Ed25519", key, decodeBase64(signature[1]!), encoder.encode(base));
  } catch {
    return false; // not base64
  }
}
