/**
 * Reads what an answer says about limits: Retry-After, RateLimit and X-RateLimit-*.
 *
 * Instants are turned into waits by the Date header of the same answer, so the machine's own clock
 * may be wrong by hours. That header is cut to whole seconds: a wait may be up to a second long,
 * never short.
 */

/** What an answer's headers say. */
export interface Limits {
  /** The least that is left over all limits. */
  remaining: number | null;
  /** How long to wait, if the answer is a refusal. */
  retryAfterMs: number | null;
}

/** One limit of a RateLimit field. */
export interface LimitState {
  name: string;
  remaining: number;
  /** Seconds until the limit is whole again. */
  resetSecs: number | null;
}

const STRING = String.raw`"(?:[^"\\]|\\["\\])*"`;
const ITEM = new RegExp(
  String.raw`[ \t]*(${STRING}|[A-Za-z*][^\s;,"]*)((?:;[ ]*[a-z*][a-z0-9_.*-]*(?:=(?:${STRING}|[^\s;,"]+))?)*)[ \t]*(,|$)`,
  "y",
);

/**
 * Parses a RateLimit field (a structured field list: `"ip";r=3;t=42, "email";r=0;t=3600`). A field
 * that is not well formed says nothing, as RFC 9651 asks.
 */
export function parseRateLimit(field: string | null): LimitState[] {
  const limits: LimitState[] = [];
  let end = 0;
  while (field && end < field.length) {
    ITEM.lastIndex = end;
    const item = ITEM.exec(field);
    // A comma must have an item behind it.
    if (!item || (item[3] === "," && ITEM.lastIndex >= field.length)) return [];
    end = ITEM.lastIndex;
    const number = (name: string) => {
      const digits = new RegExp(String.raw`;[ ]*${name}=(\d{1,15})(?=;|$)`).exec(item[2] ?? "");
      return digits ? Number(digits[1]) : null;
    };
    const remaining = number("r");
    if (remaining !== null) {
      const name = (item[1] ?? "").replace(/^"|"$/g, "").replace(/\\(.)/g, "$1");
      limits.push({ name, remaining, resetSecs: number("t") });
    }
  }
  return limits;
}

/** Reads all of it. */
export function readLimits(headers: Headers, nowMs = Date.now()): Limits {
  const limits = parseRateLimit(headers.get("ratelimit"));
  const left = whole(headers.get("x-ratelimit-remaining"));
  const remaining = limits.length ? Math.min(...limits.map((limit) => limit.remaining)) : left;
  const serverMs = Date.parse(headers.get("date") ?? "") || nowMs;
  const retryAfterMs =
    retryAfter(headers.get("retry-after"), serverMs) ??
    longestReset(limits) ??
    reset(headers.get("x-ratelimit-reset"), serverMs);
  return { remaining, retryAfterMs };
}

function whole(text: string | null): number | null {
  return text && /^\d+$/.test(text) ? Number(text) : null;
}

/** Whole seconds, or an HTTP date. */
function retryAfter(text: string | null, serverMs: number): number | null {
  const secs = whole(text);
  return secs === null ? until(text, serverMs) : secs * 1000;
}

/** Of the limits with nothing left; of all, if what was asked for is more than is left of any. */
function longestReset(limits: LimitState[]): number | null {
  const spent = limits.filter((limit) => limit.remaining === 0);
  const secs = (spent.length ? spent : limits).map((limit) => limit.resetSecs ?? 0);
  return secs.length ? Math.max(...secs) * 1000 : null;
}

/** Unix seconds; a date as some servers write it; or, if too small for an instant, a wait. */
function reset(text: string | null, serverMs: number): number | null {
  const secs = whole(text);
  if (secs === null) return until(text, serverMs);
  return secs < 1e9 ? secs * 1000 : Math.max(0, secs * 1000 - serverMs);
}

function until(text: string | null, serverMs: number): number | null {
  const at = Date.parse(text ?? "");
  return Number.isNaN(at) ? null : Math.max(0, at - serverMs);
}
