// @vitest-environment happy-dom
import { act, cleanup, fireEvent, render, renderHook, screen } from "@testing-library/react";
import { StrictMode } from "react";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { RateLimitDetail } from "../src/index.js";
import { RateLimitButton, type UseRateLimit, useRateLimit } from "../src/react.js";

let start: number;

beforeEach(() => {
  vi.useFakeTimers();
  vi.spyOn(Math, "random").mockReturnValue(0.5);
  start = Date.now();
});
afterEach(() => {
  cleanup();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

const pass = (ms: number) => act(() => vi.advanceTimersByTimeAsync(ms));
const hook = (options = {}) => renderHook(() => useRateLimit(options), { wrapper: StrictMode });
const refused = (retryAfter?: number) =>
  Object.assign(new Error("too many"), { status: 429, retryAfter });

/** A call that is refused with these errors in turn, then passes; and when it was made. */
function call(...errors: unknown[]) {
  const at: number[] = [];
  const fn = vi.fn(async () => {
    at.push(Date.now() - start);
    const error = errors[at.length - 1];
    if (error) throw error;
    return "done";
  });
  return { fn, at };
}

/** Starts a call and follows how it ends. */
async function begin(current: UseRateLimit, ...given: Parameters<UseRateLimit["withRateLimit"]>) {
  const end: { value?: unknown; error?: unknown; at?: number } = {};
  await act(async () => {
    current.withRateLimit(...given).then(
      (value) => Object.assign(end, { value, at: Date.now() - start }),
      (error) => Object.assign(end, { error, at: Date.now() - start }),
    );
  });
  return end;
}

describe("withRateLimit", () => {
  test("gives the call's result, and nobody waits", async () => {
    const { result } = hook();
    const { fn, at } = call();
    const end = await begin(result.current, fn);
    expect(end.value).toBe("done");
    expect(at).toEqual([0]);
    expect(result.current).toMatchObject({ backoffUntil: null, secondsLeft: 0, remaining: null });
    expect(result.current.canRetry()).toBe(true);
  });

  test("waits 1 s first, then 2 s, each once, and throws the last refusal itself", async () => {
    const { result } = hook();
    const last = refused(5);
    const { fn, at } = call(refused(), refused(), last);
    const end = await begin(result.current, fn);
    await pass(10_000);
    expect(at).toEqual([0, 1000, 3000]);
    expect(end.error).toBe(last);
    expect(end.error).toMatchObject({ status: 429, retryAfter: 5 });
    expect(end.at).toBe(3000);
  });

  test("jitter is a quarter, and the delay ends at 32 s", async () => {
    vi.mocked(Math.random).mockReturnValue(0);
    const { result } = hook();
    const { fn, at } = call(...Array.from({ length: 8 }, () => refused()));
    await begin(result.current, fn, 8);
    await pass(300_000);
    const waits = at.slice(1).map((instant, index) => instant - (at[index] ?? 0));
    expect(waits).toEqual([750, 1500, 3000, 6000, 12_000, 24_000, 24_000]);
  });

  test("waits as long as the refusal says, not shorter and not twice", async () => {
    const { result } = hook();
    const { fn, at } = call(refused(7));
    const end = await begin(result.current, fn);
    await pass(6_999);
    expect(at).toEqual([0]);
    await pass(1);
    expect(at).toEqual([0, 7000]);
    expect(end).toMatchObject({ value: "done", at: 7000 });
  });

  test("rethrows any other error at once", async () => {
    const { result } = hook();
    for (const error of [Object.assign(new Error("bad"), { status: 500 }), new Error("x"), null]) {
      const fn = vi.fn(() => Promise.reject(error));
      const end = await begin(result.current, fn);
      expect(end).toEqual({ error, at: 0 });
      expect(fn).toHaveBeenCalledTimes(1);
    }
    expect(result.current.canRetry()).toBe(true);
  });

  test("makes no call while another was told to wait", async () => {
    const { result } = hook();
    const first = call(refused(4));
    const second = call();
    await begin(result.current, first.fn, 1);
    await pass(1000);
    const end = await begin(result.current, second.fn);
    await pass(2_999);
    expect(second.at).toEqual([]);
    await pass(1);
    expect(second.at).toEqual([4000]);
    expect(end.value).toBe("done");
  });

  test("does not wait for tomorrow: it throws, and the button stays shut", async () => {
    const { result } = hook();
    const { fn, at } = call(refused(86_400), refused(86_400));
    const end = await begin(result.current, fn);
    expect(end).toMatchObject({ error: { retryAfter: 86_400 }, at: 0 });
    const again = await begin(result.current, fn);
    expect(again.error).toBe(end.error);
    expect(at).toEqual([0]);
    expect(result.current.secondsLeft).toBe(86_400);
    expect(result.current.canRetry()).toBe(false);
  });

  test("stops waiting when the component goes away", async () => {
    const { result, unmount } = hook();
    const { fn, at } = call(refused(7));
    const end = await begin(result.current, fn);
    await pass(1000);
    unmount();
    expect(vi.getTimerCount()).toBe(0);
    await pass(0);
    expect(end).toMatchObject({ error: { name: "AbortError" }, at: 1000 });
    expect(at).toEqual([0]);
  });
});

describe("responses", () => {
  const answer = (status: number, headers: Record<string, string>) => async () =>
    new Response("{}", { status, headers });

  test("fill in what remains", async () => {
    const { result } = hook();
    await begin(result.current, answer(200, { ratelimit: '"a";r=4;t=9, "b";r=2;t=9' }));
    expect(result.current.remaining).toBe(2);
    await begin(result.current, answer(200, { "x-ratelimit-remaining": "1" }));
    expect(result.current.remaining).toBe(1);
    await begin(result.current, answer(200, {}));
    expect(result.current.remaining).toBe(1);
  });

  test("that are 429 are refusals, and the last one has its status and wait", async () => {
    const { result } = hook();
    const headers = { "retry-after": "3", ratelimit: '"a";r=0;t=3' };
    const end = await begin(result.current, answer(429, headers), 2);
    expect(result.current.remaining).toBe(0);
    await pass(3000);
    expect(end).toMatchObject({ error: { status: 429, retryAfter: 3 }, at: 3000 });
  });

  test("can be observed inside a call that gives something else", async () => {
    const { result } = hook();
    const end = await begin(result.current, async ({ observe }) => {
      const response = observe(new Response("[1]", { headers: { "x-ratelimit-remaining": "8" } }));
      return response.json();
    });
    expect(end.value).toEqual([1]);
    expect(result.current.remaining).toBe(8);
  });

  test("of a server with another clock are waited for by its clock", async () => {
    const { result } = hook();
    const serverNow = Math.floor(start / 1000) * 1000 + 7_200_000;
    const date = new Date(serverNow).toUTCString();
    const headers = { date, "x-ratelimit-reset": String(serverNow / 1000 + 6) };
    await begin(result.current, answer(429, headers), 1);
    expect(result.current.secondsLeft).toBe(6);
    expect(result.current.backoffUntil?.getTime()).toBe(start + 6000);
  });
});

test("seconds count down, and it comes back by itself", async () => {
  const { result } = hook();
  await begin(result.current, call(refused(3)).fn, 1);
  const seen: [number, boolean, boolean][] = [];
  const look = () => {
    const { secondsLeft, backoffUntil, canRetry } = result.current;
    seen.push([secondsLeft, backoffUntil !== null, canRetry()]);
  };
  look();
  for (const ms of [500, 500, 1000, 999, 1]) {
    await pass(ms);
    look();
  }
  expect(seen).toEqual([
    [3, true, false],
    [3, true, false],
    [2, true, false],
    [1, true, false],
    [1, true, false],
    [0, false, true],
  ]);
});

test("a refusal is told to the window", async () => {
  const told: RateLimitDetail[] = [];
  const listener = (event: Event) => told.push((event as CustomEvent<RateLimitDetail>).detail);
  window.addEventListener("rate-limit-error", listener);
  const { result } = hook();
  await begin(result.current, call(refused(3)).fn);
  await pass(3000);
  window.removeEventListener("rate-limit-error", listener);
  const resetTime = new Date(start + 3000);
  expect(told).toEqual([
    { retryAfter: 3, resetTime, remaining: null, attempt: 1, willRetry: true },
  ]);
});

describe("RateLimitButton", () => {
  test("is shut while it waits, says for how long, and comes back with its call made", async () => {
    const { fn, at } = call(refused(2));
    render(<RateLimitButton onPress={fn}>Send</RateLimitButton>);
    const button = screen.getByRole("button") as HTMLButtonElement;
    const state = () => [button.textContent, button.disabled];
    expect(state()).toEqual(["Send", false]);
    await act(async () => void fireEvent.click(button));
    expect(state()).toEqual(["again in 2 s", true]);
    await pass(1000);
    expect(state()).toEqual(["again in 1 s", true]);
    await pass(1000);
    expect(state()).toEqual(["Send", false]);
    expect(at).toEqual([0, 2000]);
  });

  test("hands on what was thrown in the end, and may be pressed again", async () => {
    const errors: unknown[] = [];
    const error = new Error("no");
    const { fn } = call(error);
    render(
      <RateLimitButton onPress={fn} onError={(error) => errors.push(error)}>
        Send
      </RateLimitButton>,
    );
    const button = screen.getByRole("button") as HTMLButtonElement;
    await act(async () => void fireEvent.click(button));
    expect(errors).toEqual([error]);
    expect(button.disabled).toBe(false);
  });
});
