/** Tollgate for TypeScript: a client, a fetch that waits, and server middleware. */

export {
  type BackoffFetch,
  type BackoffOptions,
  backoffDelayMs,
  RATE_LIMIT_EVENT,
  type RateLimitDetail,
  withBackoff,
} from "./backoff.js";
export {
  type Call,
  type CallOptions,
  type CheckOptions,
  Tollgate,
  type TollgateOptions,
} from "./client.js";
export type * from "./documents.js";
export { type Problem, TollgateError } from "./error.js";
export { type LimitState, type Limits, parseRateLimit, readLimits } from "./headers.js";
export type * from "./mail.js";
export { type RateLimitOptions, rateLimit, type SubjectOrNot } from "./middleware.js";
export type * from "./offenders.js";
