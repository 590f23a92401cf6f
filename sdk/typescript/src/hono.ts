import { admitting } from "./fetch.js";
import { Refusal } from "./http.js";
import { type SignatureOptions, SignatureVerifier } from "./signature.js";

/** The part of Hono's context that the middleware uses. */
interface HonoContext {
  req: { raw: Request };
}

/** Returns a middleware for Hono that serves only one Herald. Put it before everything that reads the body. */
export function onlyHerald(options: SignatureOptions) {
  const admit = admitting(new SignatureVerifier(options));
  return async (context: HonoContext, next: () => Promise<void>): Promise<Response | void> => {
    try {
      context.req.raw = await admit(context.req.raw);
    } catch (error) {
      if (error instanceof Refusal) return error.toResponse();
      throw error;
    }
    await next();
  };
}
