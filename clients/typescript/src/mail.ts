/** The mail relay's part of the API. Times are Unix seconds, as on the wire. */

import type { CallOptions, Tollgate } from "./client.js";

export interface Tenant {
  id: string;
  /** The id if not said. */
  name?: string;
  /** Where delivery reports are sent to. */
  report_url?: string | null;
  report_secret?: string;
}

/** A tenant as it is listed. */
export interface TenantState {
  id: string;
  name: string;
  report_url?: string | null;
  [member: string]: unknown;
}

export interface Account {
  id: string;
  /** May be left out with that tenant's own token. */
  tenant_id?: string;
  host: string;
  port: number;
  user?: string | null;
  password?: string;
  use_tls?: boolean;
  /** 0, null or absent: no such limit. The same for the other two. */
  limit_per_minute?: number | null;
  limit_per_hour?: number | null;
  limit_per_day?: number | null;
  limit_behavior?: "defer" | "reject";
  /** Settings the server knows besides. */
  [setting: string]: unknown;
}

/** An account as it is listed: without its password. */
export interface AccountState extends Account {
  tenant_id: string;
  use_tls: boolean;
  limit_behavior: "defer" | "reject";
}

export interface Attachment {
  filename: string;
  content_type: string;
  content_base64: string;
}

export interface Message {
  id: string;
  /** May be left out with that tenant's own token. */
  tenant_id?: string;
  account_id: string;
  from: string;
  to: string[];
  cc?: string[];
  bcc?: string[];
  reply_to?: string;
  subject: string;
  body?: string;
  html?: string;
  headers?: Record<string, string>;
  attachments?: Attachment[];
  /** 0 immediate, 1 high, 2 medium (if not said), 3 low. */
  priority?: 0 | 1 | 2 | 3;
  deferred_ts?: number;
  batch_code?: string;
}

export interface MessageState {
  id: string;
  account_id: string;
  status: "pending" | "deferred" | "suspended" | "sent" | "error";
  priority: number;
  deferred_ts: number | null;
  attempts: number;
  last_error: string | null;
  sent_ts: number | null;
  [member: string]: unknown;
}

export interface MessageQuery {
  tenant_id?: string;
  status?: string;
  account_id?: string;
  batch_code?: string;
  limit?: number;
  cursor?: string;
}

/** One attempt to send a message. */
export interface Attempt {
  message_id: string;
  account_id: string;
  started_at: string;
  finished_at: string;
  outcome: "sent" | "retry" | "throttled" | "error" | "unknown";
  smtp_code?: number | null;
  smtp_text: string;
  [member: string]: unknown;
}

/** An API key to make. */
export interface KeyRequest {
  account_id: string;
  /** May be left out with that tenant's own token. */
  tenant_id?: string;
  name?: string;
  /** Recipients a day. */
  daily_limit?: number;
  /** Whose midnight resets it: UTC if not said. */
  timezone?: string;
}

/** An API key as it is listed: without its secret. */
export interface Key extends Required<KeyRequest> {
  id: string;
  enabled: boolean;
  created_ts: number;
}

/** Whose messages a command is about. */
export interface Selection {
  tenant_id?: string;
  batch_code?: string;
  account_id?: string;
  ids?: string[];
  [member: string]: unknown;
}

/** What `send` takes. */
export interface Letter {
  /** The sender: the account's own if not said. */
  from?: string;
  to: string | string[];
  subject: string;
  text?: string;
  html?: string;
  headers?: Record<string, string>;
  account_id?: string;
}

export interface Usage {
  api_key_id: string;
  daily_limit: number;
  emails_sent_today: number;
  emails_remaining: number;
  reset_time: string;
}

type Ok = { ok: boolean };

/** Reached as `gate.mail`. */
export class Mail {
  readonly #gate: Tollgate;

  constructor(gate: Tollgate) {
    this.#gate = gate;
  }

  readonly tenants = {
    create: (tenant: Tenant, options?: CallOptions) =>
      this.#post<Ok & { report_secret?: string }>("/tenant", tenant, options),
    list: (options?: CallOptions) => this.#get<{ tenants: TenantState[] }>("/tenants", {}, options),
    delete: (id: string, options?: CallOptions) => this.#delete<Ok>(tenantPath(id), {}, options),
    /** A token of this tenant's own; it is shown this once. */
    token: (id: string, options?: CallOptions) =>
      this.#post<{ token: string }>(`${tenantPath(id)}/token`, undefined, options),
  };

  readonly accounts = {
    /** Makes or replaces it. */
    create: (account: Account, options?: CallOptions) =>
      this.#post<Ok>("/account", account, options),
    list: (tenant_id?: string, options?: CallOptions) =>
      this.#get<{ accounts: AccountState[] }>("/accounts", { tenant_id }, options),
    delete: (id: string, tenant_id?: string, options?: CallOptions) =>
      this.#delete<Ok>(`/account/${encodeURIComponent(id)}`, { tenant_id }, options),
  };

  readonly messages = {
    add: (messages: Message[], options?: CallOptions) =>
      this.#post<{ queued: number; rejected: { id: string; reason: string }[] }>(
        "/commands/add-messages",
        { messages },
        options,
      ),
    list: (query: MessageQuery = {}, options?: CallOptions) =>
      this.#get<{ messages: MessageState[]; next_cursor?: string | null }>(
        "/messages",
        query,
        options,
      ),
    /** Every attempt to send one, in order. */
    attempts: (id: string, tenant_id?: string, options?: CallOptions) =>
      this.#get<{ attempts: Attempt[] }>(
        `/messages/${encodeURIComponent(id)}/attempts`,
        { tenant_id },
        options,
      ),
  };

  /** API keys for `send`. */
  readonly keys = {
    /** The secret, `api_key`, is shown this once. */
    create: (key: KeyRequest, options?: CallOptions) =>
      this.#post<Key & { api_key: string }>("/keys", key, options),
    list: (tenant_id?: string, options?: CallOptions) =>
      this.#get<{ keys: Key[] }>("/keys", { tenant_id }, options),
    /** Switches it on or off, or changes its daily limit. */
    put: (id: string, change: { enabled?: boolean; daily_limit?: number }, options?: CallOptions) =>
      this.#gate.call<Key>({ method: "PUT", path: keyPath(id), body: change, ...options }),
    delete: (id: string, options?: CallOptions) => this.#delete<Ok>(keyPath(id), {}, options),
  };

  /** Queues a letter under the client's `apiKey`; recipients are what is counted. */
  send(letter: Letter, options?: CallOptions) {
    return this.#post<{ status: "queued"; remaining: number; id?: string }>(
      "/api/v1/send",
      letter,
      options,
    );
  }

  /** How the client's `apiKey` stands today. Counts nothing. */
  usage(options?: CallOptions) {
    return this.#get<Usage>("/api/v1/usage", {}, options);
  }

  /** Tells the relay to do something with messages. */
  command(
    name: "run-now" | "suspend" | "activate" | "delete-messages" | "cleanup-messages",
    body: Selection = {},
    options?: CallOptions,
  ) {
    return this.#post<Ok & Record<string, unknown>>(`/commands/${name}`, body, options);
  }

  /** The relay at a glance: of one tenant, or of all. */
  status(tenant_id?: string, options?: CallOptions) {
    return this.#get<Record<string, unknown>>("/status", { tenant_id }, options);
  }

  #get<T>(path: string, query: object, options?: CallOptions) {
    return this.#gate.call<T>({ method: "GET", path, query, ...options });
  }

  #post<T>(path: string, body: unknown, options?: CallOptions) {
    return this.#gate.call<T>({ method: "POST", path, body, ...options });
  }

  #delete<T>(path: string, query: object, options?: CallOptions) {
    return this.#gate.call<T>({ method: "DELETE", path, query, ...options });
  }
}

function tenantPath(id: string): string {
  return `/tenant/${encodeURIComponent(id)}`;
}

function keyPath(id: string): string {
  return `/keys/${encodeURIComponent(id)}`;
}
