"use client";
/**
 * The React parts, in an entry of their own: `useRateLimit` makes calls that wait when they are
 * refused and tells how long; `RateLimitButton` shows it.
 *
 * A hook's calls share one backoff: while one was told to wait, none is made.
 */

import type { ButtonHTMLAttributes, MouseEvent, ReactNode } from "react";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import {
  DEFAULT_ATTEMPTS,
  DEFAULT_MAX_WAIT_MS,
  delayMs,
  pageWindow,
  tell,
  wait,
} from "./backoff.js";
import { TollgateError } from "./error.js";
import { readLimits } from "./headers.js";

/** What a call is given. */
export interface Attempt {
  /** Reads what a response says about limits, and throws if it is a 429. */
  observe: (response: Response) => Response;
  /** Aborted when the component goes away. */
  signal: AbortSignal | undefined;
  /** Counts from 1. */
  attempt: number;
}

export interface UseRateLimit {
  /** Whether a call would be made at once. */
  canRetry: () => boolean;
  /**
   * Makes a call; if it is refused (it returns a 429 response, or throws an error whose `status` is
   * 429), waits once and makes it again. Throws the last refusal, any other error at once, and an
   * `AbortError` if the component goes away while it waits.
   */
  withRateLimit: <T>(fn: (attempt: Attempt) => Promise<T>, attempts?: number) => Promise<T>;
  /** Until when no call is made, by this machine's clock; `null` when calls may be made. */
  backoffUntil: Date | null;
  /** The same in whole seconds, counting down. */
  secondsLeft: number;
  /** What is left, as of the last response that said so. */
  remaining: number | null;
}

export interface UseRateLimitOptions {
  /** A longer wait is not waited for: the refusal is thrown at once. 2 minutes if not said. */
  maxWaitMs?: number;
  /** Where `rate-limit-error` is dispatched: the window if not said. */
  events?: EventTarget;
}

/** An error that says it is a refusal. */
interface Refused {
  status?: number;
  /** Seconds. */
  retryAfter?: number;
  resetTime?: Date | string | number;
}

export function useRateLimit(options: UseRateLimitOptions = {}): UseRateLimit {
  const { maxWaitMs = DEFAULT_MAX_WAIT_MS, events } = options;
  const [remaining, setRemaining] = useState<number | null>(null);
  const left = useRef<number | null>(null);
  const { until, backoffUntil, secondsLeft, backOff } = useCountdown();
  const lastRefusal = useRef<unknown>(null);
  const signal = useLifetime();

  const canRetry = useCallback(() => Date.now() >= until.current, [until]);

  const observe = useCallback((response: Response) => {
    left.current = readLimits(response.headers).remaining ?? left.current;
    setRemaining(left.current);
    if (response.status === 429) throw TollgateError.from(response, undefined);
    return response;
  }, []);

  const withRateLimit = useCallback<UseRateLimit["withRateLimit"]>(
    async (fn, attempts = DEFAULT_ATTEMPTS) => {
      for (let attempt = 1; ; attempt++) {
        // Another call may have been refused while this one waited.
        while (!canRetry()) {
          const ms = until.current - Date.now();
          if (ms > maxWaitMs) throw lastRefusal.current;
          await wait(ms, signal());
        }
        try {
          const result = await fn({ observe, signal: signal(), attempt });
          if (result instanceof Response) observe(result);
          return result;
        } catch (error) {
          if ((error as Refused | null)?.status !== 429) throw error;
          lastRefusal.current = error;
          const asked = askedWaitMs(error as Refused);
          const ms = delayMs(attempt - 1, asked);
          const willRetry = attempt < attempts && ms <= maxWaitMs;
          const resetTime = backOff(willRetry ? ms : (asked ?? ms));
          const retryAfter = Math.ceil((resetTime.getTime() - Date.now()) / 1000);
          const detail = { retryAfter, resetTime, remaining: left.current, attempt, willRetry };
          tell(events ?? pageWindow(), detail);
          if (!willRetry) throw error;
        }
      }
    },
    [backOff, canRetry, events, maxWaitMs, observe, signal, until],
  );

  return useMemo(
    () => ({ canRetry, withRateLimit, backoffUntil, secondsLeft, remaining }),
    [canRetry, withRateLimit, backoffUntil, secondsLeft, remaining],
  );
}

function askedWaitMs({ retryAfter, resetTime }: Refused): number | null {
  if (typeof retryAfter === "number" && retryAfter >= 0) return retryAfter * 1000;
  const at = resetTime === undefined ? Number.NaN : new Date(resetTime).getTime();
  return Number.isNaN(at) ? null : Math.max(0, at - Date.now());
}

/** The instant calls may be made again: a ref for those who ask, state for what is shown. */
function useCountdown() {
  const until = useRef(0);
  const [backoffUntil, setBackoffUntil] = useState<Date | null>(null);
  const [secondsLeft, setSecondsLeft] = useState(0);

  const backOff = useCallback((ms: number) => {
    until.current = Math.max(until.current, Date.now() + ms);
    const at = new Date(until.current);
    setBackoffUntil(at);
    setSecondsLeft(secondsTo(at));
    return at;
  }, []);

  useEffect(() => {
    if (!backoffUntil) return;
    let timer: ReturnType<typeof setTimeout>;
    const step = () => {
      const ms = backoffUntil.getTime() - Date.now();
      setSecondsLeft(secondsTo(backoffUntil));
      if (ms <= 0) setBackoffUntil(null);
      else timer = setTimeout(step, ms % 1000 || 1000);
    };
    step();
    return () => clearTimeout(timer);
  }, [backoffUntil]);

  return { until, backoffUntil, secondsLeft, backOff };
}

function secondsTo(at: Date): number {
  return Math.max(0, Math.ceil((at.getTime() - Date.now()) / 1000));
}

/** A signal that is aborted when the component goes away. */
function useLifetime(): () => AbortSignal | undefined {
  const controller = useRef<AbortController>(undefined);
  useEffect(() => {
    const mounted = new AbortController();
    controller.current = mounted;
    return () => mounted.abort();
  }, []);
  return useCallback(() => controller.current?.signal, []);
}

export interface RateLimitButtonProps
  extends Omit<ButtonHTMLAttributes<HTMLButtonElement>, "onClick" | "onError"> {
  /** What the button does; refused, it waits and is done again. */
  onPress: (attempt: Attempt) => Promise<unknown>;
  /** Told of what was thrown in the end. Without it a refusal is only shown, the rest is thrown. */
  onError?: (error: unknown) => void;
  /** What it says while it waits. */
  limitedLabel?: (secondsLeft: number) => ReactNode;
  attempts?: number;
  /** A hook's to share; its own if not said. */
  limit?: UseRateLimit;
}

/** A button that shows the seconds left when its call is refused, and comes back by itself. */
export function RateLimitButton(props: RateLimitButtonProps) {
  const { onPress, onError, limitedLabel = wording, attempts, limit, children, ...rest } = props;
  const own = useRateLimit();
  const { withRateLimit, backoffUntil, secondsLeft } = limit ?? own;
  const [isBusy, setIsBusy] = useState(false);

  async function press(event: MouseEvent) {
    event.preventDefault();
    setIsBusy(true);
    try {
      await withRateLimit(onPress, attempts);
    } catch (error) {
      if ((error as Error | null)?.name === "AbortError") return;
      if (onError) onError(error);
      // A refusal can be seen on the button itself.
      else if ((error as Refused | null)?.status !== 429) throw error;
    } finally {
      setIsBusy(false);
    }
  }

  const isLimited = backoffUntil !== null;
  return (
    <button
      type="button"
      {...rest}
      aria-busy={isBusy}
      disabled={rest.disabled || isBusy || isLimited}
      onClick={press}
    >
      {isLimited ? limitedLabel(secondsLeft) : children}
    </button>
  );
}

function wording(secondsLeft: number): string {
  return `again in ${secondsLeft} s`;
}
