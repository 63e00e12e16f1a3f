/**
 * The typed client of the HTTP API. It sends and reads documents as they are; a refused check is a
 * decision, everything else that is not a success is a `TollgateError`. It does not retry: give it
 * `withBackoff(fetch)` for that.
 */

import { LONGEST_TIMER_MS } from "./backoff.js";
import type {
  AuditedSlot,
  Config,
  ConfigRequest,
  Decision,
  Override,
  OverrideInForce,
  OverrideName,
  Policy,
  PolicyChange,
  PolicyInForce,
  PolicyVersions,
  Refund,
  Slot,
  SlotBatch,
  SlotCount,
  SlotList,
  SlotQuery,
  SlotRequest,
  Subject,
  TokenInForce,
  TokenRequest,
  WindowList,
  WindowQuery,
} from "./documents.js";
import { TollgateError } from "./error.js";
import { Mail } from "./mail.js";
import type { AlertList, OffenderList } from "./offenders.js";

export interface TollgateOptions {
  /** Where the server is, such as `http://127.0.0.1:8080`. */
  url: string;
  token?: string | undefined;
  /** Of the mail relay's `send` and `usage`. */
  apiKey?: string | undefined;
  /** Another fetch, such as `withBackoff(fetch)`. */
  fetch?: (input: string, init: RequestInit) => Promise<Response>;
  /**
   * How long a call may take, retries of its fetch included: 10 s if not said, for ever if above
   * 24 days.
   */
  timeoutMs?: number;
}

export interface CallOptions {
  signal?: AbortSignal | undefined;
  /** Overrides the client's. */
  timeoutMs?: number;
  /** Makes a repetition of a check, a refund or a send safe for 24 hours. */
  idempotencyKey?: string;
}

export interface CheckOptions extends CallOptions {
  /** Units asked for: 1 if not said. */
  cost?: number;
}

/** Something to ask the server. */
export interface Call extends CallOptions {
  method: string;
  path: string;
  query?: object;
  body?: unknown;
  /** A member that a good answer has: without it somebody else is answering. */
  member?: string;
}

const TIMEOUT_MS = 10_000;

export class Tollgate {
  readonly mail: Mail;
  readonly #options: TollgateOptions;

  constructor(options: TollgateOptions) {
    // Throws at once if it is no URL.
    const { href } = new URL(options.url);
    const token = secret("token", options.token);
    const apiKey = secret("apiKey", options.apiKey);
    this.#options = { ...options, token, apiKey, url: href.replace(/\/+$/, "") };
    this.mail = new Mail(this);
  }

  /** May it happen now? If so, it is counted. */
  async check(policy: string, subject: Subject = {}, options: CheckOptions = {}) {
    return (await this.checkWithHeaders(policy, subject, options)).decision;
  }

  /** The same, with the headers that tell a client how it stands. */
  async checkWithHeaders(policy: string, subject: Subject, options: CheckOptions = {}) {
    const { response, value } = await this.#send(asking("check", policy, subject, options));
    // 429 and 422 carry a decision: no, until then; no, never.
    const isAnswer = response.ok || response.status === 429 || response.status === 422;
    if (!isAnswer || !isDecision(value)) throw unexpected(response, value, "limits");
    return { decision: value, headers: response.headers };
  }

  /** How does it stand? Counts nothing. */
  async peek(policy: string, subject: Subject = {}, options: CheckOptions = {}) {
    const { response, value } = await this.#send(asking("peek", policy, subject, options));
    if (!response.ok || !isDecision(value)) throw unexpected(response, value, "limits");
    return value;
  }

  /** Gives back what an allowed check spent. The second time it answers `refunded: false`. */
  refund(receipt: string, options: CallOptions = {}) {
    const call = { method: "POST", path: "/api/v1/refund", body: { receipt }, member: "refunded" };
    return this.call<Refund>({ ...call, ...options });
  }

  readonly slots = {
    /** When may this event happen? Always the same answer for the same id. */
    assign: (event: SlotRequest, options?: CallOptions) =>
      this.#slot<Slot>("POST", "", options, event),
    /** Up to 1000 events, each with its slot or its own problem, in order. */
    assignAll: (events: SlotRequest[], options?: CallOptions) =>
      this.call<SlotBatch>({
        method: "POST",
        path: "/api/v1/slots/batch",
        body: { events },
        member: "results",
        ...options,
      }),
    get: (eventId: string, options?: CallOptions) =>
      this.#slot<AuditedSlot>("GET", `/${encodeURIComponent(eventId)}`, options),
    /** Frees its place. Again changes nothing. */
    cancel: (eventId: string, options?: CallOptions) =>
      this.#slot<AuditedSlot>("DELETE", `/${encodeURIComponent(eventId)}`, options),
    /** A page of slots in order of time. */
    list: (query: SlotQuery = {}, options?: CallOptions) =>
      this.call<SlotList>({ method: "GET", path: "/api/v1/slots", query, ...options }),
    /** Counts all slots again and compares them with what the windows say. */
    verify: (query: { configName?: string } = {}, options?: CallOptions) =>
      this.call<SlotCount>({ method: "GET", path: "/admin/slots/verify", query, ...options }),
  };

  /** The windows of a schedule and how full they are. */
  windows(query: WindowQuery = {}, options: CallOptions = {}) {
    return this.call<WindowList>({ method: "GET", path: "/api/v1/windows", query, ...options });
  }

  readonly config = {
    set: (config: ConfigRequest, options?: CallOptions) =>
      this.call<Config>({
        method: "POST",
        path: "/admin/rate-limit/config",
        body: config,
        ...options,
      }),
    get: (name = "default", options?: CallOptions) =>
      this.call<Config>({
        method: "GET",
        path: "/admin/rate-limit/config",
        query: { name },
        ...options,
      }),
    /** Reads everything in force from the store again. */
    flush: (options?: CallOptions) =>
      this.call<{ status: string }>({
        method: "POST",
        path: "/admin/rate-limit/cache/flush",
        ...options,
      }),
  };

  readonly policies = {
    list: (options?: CallOptions) =>
      this.call<{ policies: PolicyInForce[] }>({
        method: "GET",
        path: "/admin/policies",
        ...options,
      }),
    get: (name: string, options?: CallOptions) =>
      this.call<PolicyInForce>({ method: "GET", path: policyPath(name), ...options }),
    /** Makes or replaces it. In force at the next decision. */
    put: (name: string, policy: Policy, options?: CallOptions) =>
      this.call<PolicyChange>({
        method: "PUT",
        path: policyPath(name),
        body: policy,
        ...options,
      }),
    delete: (name: string, options?: CallOptions) =>
      this.call<{ deleted: boolean }>({ method: "DELETE", path: policyPath(name), ...options }),
    versions: (name: string, options?: CallOptions) =>
      this.call<PolicyVersions>({
        method: "GET",
        path: `${policyPath(name)}/versions`,
        ...options,
      }),
  };

  /** One subject's own maximum. */
  readonly overrides = {
    list: (options?: CallOptions) =>
      this.#override<{ overrides: OverrideInForce[] }>("GET", options),
    put: (change: Override, options?: CallOptions) =>
      this.#override<OverrideInForce>("PUT", options, change),
    delete: (name: OverrideName, options?: CallOptions) =>
      this.#override<{ deleted: boolean }>("DELETE", options, name),
  };

  /** What servers and people authenticate with. */
  readonly tokens = {
    /** The secret is shown this once. The first must be an admin's. */
    create: (token: TokenRequest, options?: CallOptions) =>
      this.#token<{ token: string; scope: string; name: string }>("POST", "", options, token),
    list: (options?: CallOptions) => this.#token<{ tokens: TokenInForce[] }>("GET", "", options),
    /** Revokes it. */
    delete: (id: string, options?: CallOptions) =>
      this.#token<{ deleted: boolean }>("DELETE", `/${encodeURIComponent(id)}`, options),
  };

  /** Who is refused most. */
  offenders(query: { since?: string; limit?: number } = {}, options: CallOptions = {}) {
    return this.call<OffenderList>({ method: "GET", path: "/admin/offenders", query, ...options });
  }

  /** A page of the alerts that were raised, newest first. */
  alerts(query: { cursor?: string; limit?: number } = {}, options: CallOptions = {}) {
    return this.call<AlertList>({ method: "GET", path: "/admin/alerts", query, ...options });
  }

  /** Whether the server and its store answer now. */
  ready(options: CallOptions = {}): Promise<boolean> {
    return this.call({ method: "GET", path: "/readyz", ...options }).then(
      () => true,
      () => false,
    );
  }

  /** Anything the server answers in JSON. Throws a `TollgateError` unless it succeeds. */
  async call<T>(call: Call): Promise<T> {
    const { response, value } = await this.#send(call);
    const { member } = call;
    const isGood = isObject(value) && (!member || member in value);
    if (!response.ok || !isGood) throw unexpected(response, value, member);
    return value as T;
  }

  #slot<T>(method: string, id: string, options?: CallOptions, body?: unknown) {
    const path = `/api/v1/slots${id}`;
    return this.call<T>({ method, path, body, member: "scheduledTime", ...options });
  }

  #token<T>(method: string, id: string, options?: CallOptions, body?: unknown) {
    return this.call<T>({ method, path: `/admin/tokens${id}`, body, ...options });
  }

  #override<T>(method: string, options?: CallOptions, body?: unknown) {
    return this.call<T>({ method, path: "/admin/overrides", body, ...options });
  }

  async #send(call: Call): Promise<{ response: Response; value: unknown }> {
    const { url, token, apiKey, fetch = globalThis.fetch } = this.#options;
    const timeoutMs = call.timeoutMs ?? this.#options.timeoutMs ?? TIMEOUT_MS;
    // Written so that what is no number is refused too.
    if (!(timeoutMs >= 0)) throw new RangeError(`timeoutMs is ${timeoutMs}`);
    // A URL leaves out such segments, escaped or not, and would name something else.
    if (/\/\.{0,2}(\/|$)/.test(call.path)) {
      throw new RangeError(`an id in ${call.path} is empty or of dots alone: no URL can name it`);
    }
    const headers: Record<string, string> = {};
    if (token) headers["X-API-Token"] = token;
    if (apiKey) headers["X-API-Key"] = apiKey;
    if (call.idempotencyKey) headers["Idempotency-Key"] = call.idempotencyKey;
    if (call.body !== undefined) headers["Content-Type"] = "application/json";
    const late = timeoutMs > LONGEST_TIMER_MS ? [] : [AbortSignal.timeout(Math.ceil(timeoutMs))];
    const init: RequestInit = {
      method: call.method,
      headers,
      // A token is for this server alone. ("error" is not known to Workers.)
      redirect: "manual",
      signal: AbortSignal.any(call.signal ? [call.signal, ...late] : late),
    };
    if (call.body !== undefined) init.body = JSON.stringify(call.body, meant);
    try {
      const response = await fetch(url + call.path + search(call.query), init);
      return { response, value: read(response, await response.text()) };
    } catch (cause) {
      if (cause instanceof TollgateError) throw cause;
      call.signal?.throwIfAborted();
      throw new TollgateError(
        0,
        { detail: `no answer from ${url}: ${reason(cause)}` },
        undefined,
        cause,
      );
    }
  }
}

/** What JSON would write as null, which the server takes for "not said". */
function meant(this: Record<string, unknown>, key: string, value: unknown): unknown {
  const given = this[key];
  if (given instanceof Date || typeof given === "number") {
    if (!Number.isFinite(Number(given))) throw new RangeError(`${key} is ${given}`);
  }
  return value;
}

function asking(face: "check" | "peek", policy: string, subject: Subject, options: CheckOptions) {
  const { cost, ...rest } = options;
  return { method: "POST", path: `/api/v1/${face}`, body: { policy, subject, cost }, ...rest };
}

function isObject(value: unknown): value is object {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isDecision(value: unknown): value is Decision {
  const { allowed, limits } = (value ?? {}) as Partial<Decision>;
  return typeof allowed === "boolean" && Array.isArray(limits);
}

/** The error that an answer is: the server's own, or that it is not Tollgate's. */
function unexpected(response: Response, value: unknown, member?: string): TollgateError {
  const { ok, status, type } = response;
  if (ok) {
    const missing = member ? `has no ${member}` : "is no object";
    return TollgateError.from(response, { detail: `the answer ${missing}: is this a tollgate?` });
  }
  // A browser does not tell the status of what it did not follow.
  if ((status >= 300 && status < 400) || type === "opaqueredirect") {
    const detail = "the answer is a redirect, which is not followed: give the server's own address";
    return TollgateError.from(response, { detail });
  }
  return TollgateError.from(response, value);
}

/** Without white space around it, as a file has; never printed. */
function secret(name: string, value?: string): string | undefined {
  const text = value?.trim();
  if (text && /[^!-~]/.test(text)) {
    throw new TypeError(`the ${name} has a space or another character that no header can carry`);
  }
  return text;
}

function policyPath(name: string): string {
  return `/admin/policies/${encodeURIComponent(name)}`;
}

function search(query: object = {}): string {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined);
  const texts = pairs.map(([name, value]) => [
    name,
    value instanceof Date ? value.toISOString() : String(value),
  ]);
  return texts.length ? `?${new URLSearchParams(texts)}` : "";
}

/** A failure may say anything; a success must be JSON. */
function read(response: Response, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    if (!response.ok) return undefined;
    throw TollgateError.from(response, { detail: "the answer is not JSON: is this a tollgate?" });
  }
}

function reason(cause: unknown): string {
  const { message, cause: inner } = cause as { message?: string; cause?: { message?: string } };
  return inner?.message || message || String(cause);
}
