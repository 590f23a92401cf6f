export type { Feedback, FeedbackResponse, Revocation, Validation } from "./events.js";
export { onlyHerald } from "./fetch.js";
export { type Delivery, type Handler, type Handlers, Rejection } from "./receive.js";
export { type FastMcpServer, type OfficialServer, registerHerald } from "./register.js";
export { Refusal } from "./http.js";
export { type SignatureOptions, type SignedRequest, SignatureVerifier } from "./signature.js";
export { type DeliveryStore, MemoryStore } from "./store.js";
