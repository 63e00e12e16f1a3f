/** Who is refused most, and the alerts raised for it: the documents of both. */

export interface Offender {
  policy: string;
  limit: string;
  /** Values of private limits are not shown. */
  subject: Record<string, string> | string;
  refusals: number;
  [member: string]: unknown;
}

export interface OffenderList {
  offenders: Offender[];
  [member: string]: unknown;
}

export interface Alert {
  policy: string;
  raised_at: string;
  [member: string]: unknown;
}

export interface AlertList {
  alerts: Alert[];
  [member: string]: unknown;
}
