/**
 * Server middleware for anything with the Fetch API's signature, `(Request) => Promise<Response>`:
 * Netlify, Next, Deno, Workers, Hono's `app.fetch`.
 *
 * It asks before the handler runs and tells the client how it stands on every answer. It does not
 * find out who the client is: `subject` says so, from an identity somebody verified. The client's
 * own Idempotency-Key is not passed on: with one key for all its requests it would be counted once.
 */

import type { Tollgate } from "./client.js";
import type { Decision } from "./documents.js";
import { TollgateError } from "./error.js";

/** Attributes of who is asking. One that is missing is answered 400, and named. */
export type SubjectOrNot = Record<string, string | null | undefined>;

type Handler<Incoming extends Request, Rest extends unknown[]> = (
  request: Incoming,
  ...rest: Rest
) => Response | Promise<Response>;
type From<Rest extends unknown[], T> = (request: Request, ...rest: Rest) => T | Promise<T>;

export interface RateLimitOptions<Rest extends unknown[] = unknown[]> {
  gate: Tollgate;
  /** The policy's name; `null` lets the request pass uncounted. */
  policy: string | From<Rest, string | null>;
  /** Who is asking; a `Response` (such as a 401) is answered as it is. */
  subject: From<Rest, SubjectOrNot | Response>;
  /** Units the request costs: 1 if not said. */
  cost?: number | From<Rest, number>;
  /** What a refusal looks like: `json` is `{ok: false, error, retry_after}`, the default. */
  format?: "json" | "problem";
  /**
   * What happens when nobody could say: `refuse` (the default: 503, or 500 if it is our fault). A
   * subject that the server finds malformed is refused with 400 all the same.
   */
  onError?: "refuse" | "allow";
  /** Which answers give back what they cost: those of 5xx if not said. */
  refundWhen?: false | ((response: Response) => boolean);
  /** How long the limiter may take: 1 s if not said. */
  timeoutMs?: number;
  /** Told of checks and refunds that failed; the console if not said. */
  report?: (error: unknown) => void;
}

/** These are lists: a handler limited twice tells of both. */
const LISTS = ["RateLimit-Policy", "RateLimit"];
/** One value each: that of the innermost limit, so that a refusal tells of the one that refused. */
const SINGLE = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After"];

const FAILED = "the rate limit check failed";
/** The request itself is at fault, and will be again. */
const MALFORMED = [400, 413, 422];

/** Makes a wrapper for handlers: `const limit = rateLimit({…}); export default limit(handler)`. */
export function rateLimit<Rest extends unknown[] = unknown[]>(options: RateLimitOptions<Rest>) {
  return <Incoming extends Request, Given extends [...Rest, ...unknown[]]>(
    handler: Handler<Incoming, Given>,
  ) =>
    async (request: Incoming, ...given: Given): Promise<Response> => {
      const pass = () => handler(request, ...given);
      // A handler may be given more than these functions look at.
      const rest = given as unknown[] as Rest;
      const policy = await settled(options.policy, request, rest);
      if (policy === null) return pass();
      const who = await options.subject(request, ...rest);
      if (who instanceof Response) return who;
      if (typeof who !== "object" || who === null) {
        throw new TypeError("subject must give attributes, or a Response such as a 401");
      }
      const missing = Object.keys(who).find((name) => !who[name]);
      if (missing) return failure(options, 400, `the request has no ${missing}`);
      const subject = who as Record<string, string>;
      const cost = await settled(options.cost ?? 1, request, rest);
      const asked = await ask(options, policy, subject, cost);
      if (asked instanceof Response) return asked;
      return asked ? passOn(options, asked.decision, asked.headers, pass) : pass();
    };
}

/** The decision; nothing if it failed and that is allowed; or the answer that refuses. */
async function ask<Rest extends unknown[]>(
  options: RateLimitOptions<Rest>,
  policy: string,
  subject: Record<string, string>,
  cost: number,
) {
  try {
    const timeoutMs = options.timeoutMs ?? 1_000;
    const asked = await options.gate.checkWithHeaders(policy, subject, { cost, timeoutMs });
    return asked.decision.allowed ? asked : refusal(options, asked.decision, asked.headers);
  } catch (error) {
    const { status, detail } = error instanceof TollgateError ? error : { status: 0, detail: "" };
    // Also where failures pass: whoever sends a value that is too long would never be counted.
    if (MALFORMED.includes(status)) return failure(options, 400, detail);
    report(options, error);
    if (options.onError === "allow") return undefined;
    // It answers, but not as a limiter of ours does: no wait helps.
    if (status > 0 && status < 500) return failure(options, 500, FAILED);
    return withHeaders(failure(options, 503, FAILED), new Headers({ "Retry-After": "1" }));
  }
}

/** Lets the request through, and gives back what it cost if it failed. */
async function passOn<Rest extends unknown[]>(
  options: RateLimitOptions<Rest>,
  decision: Decision,
  told: Headers,
  pass: () => Response | Promise<Response>,
): Promise<Response> {
  const isRefundable = options.refundWhen ?? ((response: Response) => response.status >= 500);
  let response: Response;
  try {
    response = await pass();
  } catch (error) {
    if (isRefundable) await giveBack(options, decision);
    throw error;
  }
  if (isRefundable !== false && isRefundable(response)) await giveBack(options, decision);
  return withHeaders(response, told);
}

async function giveBack<Rest extends unknown[]>(
  options: RateLimitOptions<Rest>,
  { receipt }: Decision,
) {
  if (!receipt) return;
  try {
    await options.gate.refund(receipt, { timeoutMs: options.timeoutMs ?? 1_000 });
  } catch (error) {
    report(options, error);
  }
}

/** 429 with the wait; 422 without one if it can never pass, as the server itself answers. */
function refusal(
  { format }: { format?: "json" | "problem" },
  decision: Decision,
  told: Headers,
): Response {
  const { detail, retry_after } = decision;
  const status = retry_after === undefined ? 422 : 429;
  const error = detail ?? "rate limit exceeded";
  const body = format === "problem" ? decision : { ok: false, error, retry_after };
  return withHeaders(answer(status, body, format), told);
}

/** An answer that is not a decision. */
function failure({ format }: { format?: "json" | "problem" }, status: number, error: string) {
  const problem = { type: "about:blank", title: error, status, detail: error };
  return answer(status, format === "problem" ? problem : { ok: false, error }, format);
}

function answer(status: number, body: object, format: "json" | "problem" = "json"): Response {
  const type = format === "problem" ? "application/problem+json" : "application/json";
  return new Response(JSON.stringify(body), { status, headers: { "Content-Type": type } });
}

function withHeaders(response: Response, told: Headers): Response {
  // An upgrade or a network error is not a response that can be copied.
  if (response.status < 200) return response;
  let marked = response;
  const missing = SINGLE.filter((name) => !response.headers.has(name));
  for (const name of [...LISTS, ...missing]) {
    const value = told.get(name);
    if (value === null) continue;
    try {
      marked.headers.append(name, value);
    } catch {
      // What came from fetch or a redirect has headers that cannot be changed.
      marked = new Response(response.body, response);
      marked.headers.append(name, value);
    }
  }
  return marked;
}

function settled<Rest extends unknown[], T extends string | number | null>(
  value: T | From<Rest, T>,
  request: Request,
  rest: Rest,
): T | Promise<T> {
  return typeof value === "function" ? value(request, ...rest) : value;
}

function report<Rest extends unknown[]>(options: RateLimitOptions<Rest>, error: unknown) {
  (options.report ?? console.error)(error);
}
