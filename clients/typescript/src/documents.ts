/**
 * What goes over the wire, named and spelled as there: slots and their config in camelCase, the rest
 * in snake_case. Instants are RFC 3339 text; where one is sent, a `Date` does as well.
 */

import type { Problem } from "./error.js";

/** Who is asking: the attributes the policy's limits count by. */
export type Subject = Record<string, string>;

/** An instant to send. */
export type Time = string | Date;

/** One limit for one subject. */
export interface LimitReport {
  name: string;
  max: number;
  used: number;
  remaining: number;
  resets_at: string;
  /** Seconds until this limit lets the request pass; only if it does not now. */
  retry_after?: number;
  /** Counts and reports, never refuses. */
  shadow?: boolean;
}

/** Allowed or refused, and how each limit stands. */
export interface Decision {
  allowed: boolean;
  policy: string;
  cost: number;
  limits: LimitReport[];
  /** Whole seconds until it passes. Refused without it: it never will. */
  retry_after?: number;
  /** The instant at which it passes. */
  retry_at?: string;
  decided_at: string;
  /** Gives back what this decision spent. */
  receipt?: string;
  /** Set when the store could not answer and the policy says to go on. */
  degraded?: "allow" | "local";
  /** Of a refusal: a sentence for a person. */
  detail?: string;
  /** Of a refusal: the names of the refusing limits. */
  "violated-policies"?: string[];
}

export interface Refund {
  refunded: boolean;
  /** Why not. */
  reason?: string;
}

/** An event that wants a slot. */
export interface SlotRequest {
  eventId: string;
  configName?: string;
  requestedTime?: Time;
}

/** When an event may happen. */
export interface Slot {
  eventId: string;
  scheduledTime: string;
  delayMs: number;
}

/** A slot with all that is kept of it. */
export interface AuditedSlot extends Slot {
  configName: string;
  configVersion: number;
  requestedTime: string;
  createdAt: string;
  cancelledAt?: string;
}

export interface SlotBatch {
  /** One for each event, in their order. */
  results: (Slot | Problem)[];
  /** How many of them have their slot from before this call. */
  repeated: number;
}

export interface SlotQuery {
  configName?: string;
  from?: Time;
  to?: Time;
  cursor?: string;
  limit?: number;
}

export interface SlotList {
  slots: AuditedSlot[];
  nextCursor?: string;
}

/** What counting all slots again found; no drifts is as it should be. */
export interface SlotCount {
  configName: string;
  windows: number;
  slots: number;
  /** Windows whose count is not the number of their slots. */
  drifts: { start: string; counted: number; slots: number }[];
}

export interface WindowQuery {
  configName?: string;
  from?: Time;
  to?: Time;
}

export interface WindowList {
  configName: string;
  windowSize: string;
  windows: { start: string; end: string; count: number; max: number }[];
  nextFrom?: string;
}

export interface ConfigRequest {
  configName: string;
  maxPerWindow: number;
  /** Such as `PT4S`. */
  windowSize: string;
}

export interface Config extends ConfigRequest {
  version: number;
  effectiveFrom: string;
}

export interface Limit {
  name: string;
  max: number;
  /** A duration (`60s`, `PT4S`) or a calendar unit (`minute`, `hour`, `day`, `week`, `month`). */
  per: string;
  algorithm?: "fixed" | "sliding" | "bucket";
  by?: string[];
  max_by?: Record<string, Record<string, number>>;
  burst?: number;
  resolution?: string;
  timezone?: string;
  private?: boolean;
  shadow?: boolean;
  ipv6_prefix?: number;
}

export interface Policy {
  limits: Limit[];
  on_store_error?: "refuse" | "allow" | "local";
  durability?: "interval" | "sync";
  routes?: string[];
  schedule?: {
    spread?: "even" | "random";
    horizon?: string;
    calendar?: Record<string, unknown>;
    [setting: string]: unknown;
  };
}

export interface PolicyInForce extends Policy {
  name: string;
  version: number;
  effective_from: string;
}

export interface PolicyChange {
  name: string;
  version: number;
  effective_from: string;
  /** Whether a new version was made. */
  changed: boolean;
  /** Limits that count anew, because what they count by changed. */
  restarted: string[];
  detail: string;
}

export interface PolicyVersions {
  name: string;
  /** Newest first. */
  versions: {
    version: number;
    created_at: string;
    created_by: string;
    deleted: boolean;
    policy: Policy | null;
  }[];
}

/** Which limit of which subject. */
export interface OverrideName {
  policy: string;
  subject: Subject;
  limit: string;
}

export interface Override extends OverrideName {
  max: number;
}

export interface OverrideInForce extends Override {
  created_by: string;
  created_at: string;
}

export interface TokenRequest {
  scope: "admin" | "check";
  /** Noted in the audit of what the token does. */
  name?: string;
}

/** A token as it is listed: not what it is. */
export interface TokenInForce {
  /** To revoke it by. */
  id: string;
  name: string;
  scope: string;
  created_at: string;
}
