/**
 * The one error this package throws by itself. A refused check is not one: it is a decision.
 */

import { readLimits } from "./headers.js";

/** An RFC 9457 problem document, with whatever else it carries. */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  /** What is wrong, where one field is. */
  field?: string;
  request_id?: string;
  /** Everything that is wrong with a policy. */
  errors?: { field: string; detail: string }[];
  [member: string]: unknown;
}

/** What went wrong, in the words of the problem document. */
export class TollgateError extends Error {
  override readonly name: string = "TollgateError";
  /** The HTTP status; 0 if there was no answer. */
  readonly status: number;
  readonly type: string;
  readonly title: string;
  readonly detail: string;
  readonly field: string | undefined;
  readonly requestId: string | undefined;
  readonly errors: { field: string; detail: string }[];
  /** Seconds to wait, if the answer said so. */
  readonly retryAfter: number | undefined;
  /** The whole document, empty if there was none. */
  readonly problem: Partial<Problem>;

  constructor(status: number, problem: Partial<Problem>, retryAfter?: number, cause?: unknown) {
    const detail = problem.detail ?? problem.title ?? `the server answered ${status}`;
    super(detail, { cause });
    this.status = status;
    this.type = problem.type ?? "about:blank";
    this.title = problem.title ?? "";
    this.detail = detail;
    this.field = problem.field;
    this.requestId = problem.request_id;
    this.errors = problem.errors ?? [];
    this.retryAfter = retryAfter;
    this.problem = problem;
  }

  /** From an answer that is not a success, and its body if that was JSON. */
  static from(response: Response, body: unknown): TollgateError {
    const problem = body && typeof body === "object" ? (body as Partial<Problem>) : {};
    const waitMs = readLimits(response.headers).retryAfterMs;
    // An answer may tell how limits stand without being refused by them.
    const isAskedToWait = response.status === 429 || response.headers.has("retry-after");
    const retryAfter = isAskedToWait && waitMs !== null ? Math.ceil(waitMs / 1000) : undefined;
    return new TollgateError(response.status, problem, retryAfter);
  }
}
