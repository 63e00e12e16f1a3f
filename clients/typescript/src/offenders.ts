/** Who is refused most, and the alerts raised for it: the documents of both. */

export interface Offender {
  policy: string;
  limit: string;
  /** What the limit counts by. Private values are short keyed hashes (`hmac:…`). */
  subject: Record<string, string>;
  /** At least so often. */
  refused: number;
  /** And at most so many times more. */
  error: number;
  first_seen: string;
  last_seen: string;
}

export interface OffenderList {
  /** From when on refusals count. */
  since: string;
  /** Most refused first. */
  offenders: Offender[];
}

export interface Alert {
  id: number;
  /** The rule's name. */
  rule: string;
  policy: string;
  /** Not there if the rule is about policies; nor is `subject` then. */
  limit?: string;
  subject?: Record<string, string>;
  refused: number;
  /** The rule's time. */
  within: string;
  first_seen: string;
  raised_at: string;
}

export interface AlertList {
  /** Newest first. */
  alerts: Alert[];
  /** `cursor` of the next page, if there is one. */
  next_cursor?: string;
}
