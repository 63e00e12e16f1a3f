/**
 * Waiting: how long, and `withBackoff`, a fetch that waits and tries again when it is refused.
 *
 * Retries 429, and 503 if the server names a wait. Anything else is given back as it came: whether
 * a request that failed on the way had its effect, only the caller can judge.
 */

import { readLimits } from "./headers.js";

/** The name of the event that tells of a refusal. */
export const RATE_LIMIT_EVENT = "rate-limit-error";

const FIRST_MS = 1_000;
const LONGEST_MS = 32_000;
const JITTER = 0.25;
/** A longer timer ends at once. */
export const LONGEST_TIMER_MS = 0x7fff_ffff;

/** Calls in all, the first included. */
export const DEFAULT_ATTEMPTS = 3;
/** Beyond this a refusal is given back at once: nobody waits for tomorrow's quota. */
export const DEFAULT_MAX_WAIT_MS = 120_000;

/** What a `rate-limit-error` event carries. */
export interface RateLimitDetail {
  /** Seconds until the next try makes sense. */
  retryAfter: number;
  /** The same as an instant of this machine's clock. */
  resetTime: Date;
  remaining: number | null;
  /** How many calls were made so far. */
  attempt: number;
  /** Whether it will be tried again without anybody's doing. */
  willRetry: boolean;
}

/** 1, 2, 4 … 32 s, each ±25 %. `attempt` counts from 0. */
export function backoffDelayMs(attempt: number, random: () => number = Math.random): number {
  const delay = Math.min(FIRST_MS * 2 ** attempt, LONGEST_MS);
  return Math.round(delay * (1 + JITTER * (2 * random() - 1)));
}

/** Own delay or the server's wait, whichever is longer: never sooner than the server said. */
export function delayMs(attempt: number, retryAfterMs: number | null, random?: () => number) {
  return Math.max(backoffDelayMs(attempt, random), retryAfterMs ?? 0);
}

/** Resolves after `ms`, or rejects with the signal's reason as soon as it is aborted. */
export function wait(ms: number, signal?: AbortSignal | null): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    let left = ms;
    let timer: ReturnType<typeof setTimeout>;
    const aborted = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const next = () => {
      if (left <= 0) {
        signal?.removeEventListener("abort", aborted);
        return resolve();
      }
      const step = Math.min(left, LONGEST_TIMER_MS);
      left -= step;
      timer = setTimeout(next, step);
    };
    signal?.addEventListener("abort", aborted, { once: true });
    next();
  });
}

/** Tells whoever listens of a refusal. */
export function tell(target: EventTarget | undefined, detail: RateLimitDetail): void {
  target?.dispatchEvent(new CustomEvent(RATE_LIMIT_EVENT, { detail }));
}

/** The page's window, where there is one. */
export function pageWindow(): EventTarget | undefined {
  return (globalThis as { window?: EventTarget }).window;
}

export interface BackoffOptions {
  /** Calls in all, the first included: 3 if not said. */
  attempts?: number;
  /** A longer wait is not waited for: the refusal is given back at once. 2 minutes if not said. */
  maxWaitMs?: number;
  /** Where `rate-limit-error` is dispatched: the window, or an own EventTarget, if not said. */
  events?: EventTarget;
  /**
   * Makes the `Idempotency-Key` that POST and PATCH carry over all their tries, unless they have
   * one. `false` sends none: another site may not allow the header.
   */
  idempotencyKey?: false | (() => string);
  /** For tests: a number from 0 to 1. */
  random?: () => number;
}

type Fetch = typeof globalThis.fetch;

/** A fetch, and where it tells of refusals. */
export type BackoffFetch = ((input: RequestInfo | URL, init?: RequestInit) => Promise<Response>) & {
  readonly events: EventTarget;
};

/**
 * Wraps a fetch: refused requests are tried again after the wait the server asks for, at least
 * 1, 2, 4 … 32 s (±25 %). The last refusal is an ordinary response, also when the time of an
 * `AbortSignal.timeout` is up during a wait.
 */
export function withBackoff(fetch: Fetch, options: BackoffOptions = {}): BackoffFetch {
  const { maxWaitMs = DEFAULT_MAX_WAIT_MS, random } = options;
  const events = options.events ?? pageWindow() ?? new EventTarget();
  const send = async (input: RequestInfo | URL, init?: RequestInit) => {
    const { again, signal, isReplayable } = repeatable(input, init, options.idempotencyKey);
    const attempts = isReplayable ? (options.attempts ?? DEFAULT_ATTEMPTS) : 1;
    for (let attempt = 1; ; attempt++) {
      const response = await fetch(...again());
      if (!isWorthWaiting(response)) return response;
      const { remaining, retryAfterMs } = readLimits(response.headers);
      const ms = delayMs(attempt - 1, retryAfterMs, random);
      const willRetry = attempt < attempts && ms <= maxWaitMs;
      if (response.status === 429) {
        const resetTime = new Date(Date.now() + ms);
        tell(events, {
          retryAfter: Math.ceil(ms / 1000),
          resetTime,
          remaining,
          attempt,
          willRetry,
        });
      }
      if (!willRetry) return response;
      // Read while we wait: unread it would hold its connection, and end with the signal.
      const body = response.arrayBuffer().catch(() => null);
      try {
        await wait(ms, signal);
      } catch (error) {
        // Out of time is not out of answers: it was refused.
        if ((error as Error | null)?.name !== "TimeoutError") throw error;
        return new Response(await body, response);
      }
    }
  };
  return Object.assign(send, { events });
}

function isWorthWaiting(response: Response): boolean {
  return (
    response.status === 429 || (response.status === 503 && response.headers.has("retry-after"))
  );
}

/** The request as something that can be sent several times, with one idempotency key. */
function repeatable(
  input: RequestInfo | URL,
  init: RequestInit | undefined,
  idempotencyKey: BackoffOptions["idempotencyKey"] = randomKey,
) {
  const request = input instanceof Request ? input : undefined;
  const headers = new Headers(init?.headers ?? request?.headers);
  const method = (init?.method ?? request?.method ?? "GET").toUpperCase();
  const isUnsafe = method === "POST" || method === "PATCH";
  if (isUnsafe && idempotencyKey && !headers.has("idempotency-key")) {
    headers.set("idempotency-key", idempotencyKey());
  }
  const again = (): [RequestInfo | URL, RequestInit] => [
    request ? request.clone() : input,
    { ...init, headers },
  ];
  return {
    again,
    signal: init?.signal ?? request?.signal,
    // A stream can be read once only.
    isReplayable: !(init?.body instanceof ReadableStream),
  };
}

/** 128 random bits. (`randomUUID` is missing on pages without TLS.) */
function randomKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
