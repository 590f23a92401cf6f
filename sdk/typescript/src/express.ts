import { readBody, Refusal } from "./http.js";
import { type SignatureOptions, SignatureVerifier } from "./signature.js";

/** The part of Express's request that the middleware uses. */
interface ExpressRequest {
  method: string;
  originalUrl: string;
  headers: Record<string, string | string[] | undefined>;
  readableEnded: boolean;
  /** Reads the body. The connection stays open for the answer. */
  iterator(options: { destroyOnReturn: false }): AsyncIterable<Uint8Array>;
  body?: unknown;
  /** The bytes of a body that another middleware has read. */
  rawBody?: Uint8Array;
  _body?: boolean;
}

/** The part of Express's response that the middleware uses. */
interface ExpressResponse {
  status(code: number): { set(headers: Record<string, string>): { send(text: string): unknown } };
}

/**
 * Returns a middleware for Express 4 and 5 that serves only one Herald. It reads the body, verifies its bytes and puts
 * the parsed JSON into request.body. It comes before express.json, which then leaves the body alone. If another
 * middleware has to read the body first, let it keep the bytes in request.rawBody: express.json has the option verify.
 */
export function onlyHerald(options: SignatureOptions) {
  const verifier = new SignatureVerifier(options);
  return async (request: ExpressRequest, response: ExpressResponse, next: (error?: unknown) => void): Promise<void> => {
    try {
      if (request.readableEnded && !request.rawBody && request.body) {
        throw new TypeError(
          "onlyHerald needs the body's bytes: put it before express.json, or let verify store them in rawBody",
        );
      }
      const unread = request.readableEnded ? null : request.iterator({ destroyOnReturn: false });
      const body = request.rawBody ?? (await readBody(unread, verifier.maxBody));
      await verifier.verify({ method: request.method, target: request.originalUrl, headers: headersOf(request), body });
      if (!request.rawBody && body.length > 0) {
        request.body = parseJson(body);
        request._body = true; // body-parser 1 reads no body after this
      }
    } catch (error) {
      if (!(error instanceof Refusal)) return next(error);
      response.status(error.status).set(error.headers).send(error.message);
      return;
    }
    next();
  };
}

function headersOf(request: ExpressRequest): Headers {
  const headers = new Headers();
  for (const [name, value] of Object.entries(request.headers)) {
    if (name.startsWith(":")) continue;
    for (const one of [value ?? []].flat()) headers.append(name, one);
  }
  return headers;
}

/** The signer is Herald, so a body that is not JSON is Herald's fault: the server answers it. */
function parseJson(body: Uint8Array): unknown {
  const text = new TextDecoder().decode(body);
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
