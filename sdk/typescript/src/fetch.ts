import { readBody, Refusal } from "./http.js";
import { type SignatureOptions, SignatureVerifier } from "./signature.js";

/**
 * Serves only one Herald: onlyHerald({herald, self})(handler) is a fetch handler that answers other callers with 401. It
 * answers 503 while the keys of Herald cannot be fetched. The further arguments of a runtime reach your handler.
 */
export function onlyHerald(options: SignatureOptions) {
  const admit = admitting(new SignatureVerifier(options));
  return <More extends unknown[]>(handler: (request: Request, ...more: More) => Response | Promise<Response>) =>
    async (request: Request, ...more: More): Promise<Response> => {
      let admitted: Request;
      try {
        admitted = await admit(request);
      } catch (error) {
        if (error instanceof Refusal) return error.toResponse();
        throw error;
      }
      return handler(admitted, ...more);
    };
}

/** Returns a function that verifies a request and returns it with its body unread. It throws Refusal. */
export function admitting(verifier: SignatureVerifier): (request: Request) => Promise<Request> {
  return async (request) => {
    const body = await readBody(request.body, verifier.maxBody);
    const { pathname, search } = new URL(request.url);
    await verifier.verify({ method: request.method, target: pathname + search, headers: request.headers, body });
    if (request.body === null) return request;
    return new Request(request.url, {
      method: request.method,
      headers: request.headers,
      body: body as BodyInit,
      signal: request.signal,
    });
  };
}
