import { createServer, type IncomingHttpHeaders, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import {
  backoffDelayMs,
  RATE_LIMIT_EVENT,
  type RateLimitDetail,
  withBackoff,
} from "../src/index.js";

const middle = () => 0.5;

test("delays are 1, 2, 4 … 32 s, and stay there", () => {
  const delays = [0, 1, 2, 3, 4, 5, 6, 40].map((attempt) => backoffDelayMs(attempt, middle));
  expect(delays).toEqual([1000, 2000, 4000, 8000, 16000, 32000, 32000, 32000]);
});

test("jitter is a quarter, up and down", () => {
  expect(backoffDelayMs(0, () => 0)).toBe(750);
  expect(backoffDelayMs(0, () => 1)).toBe(1250);
  expect(backoffDelayMs(5, () => 0)).toBe(24_000);
  expect(backoffDelayMs(5, () => 1)).toBe(40_000);
});

describe("by the clock", () => {
  beforeEach(() => {
    vi.useFakeTimers();
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  /** A fetch that gives these answers in turn, and the instants at which it was asked. */
  function answers(...list: [status: number, headers?: Record<string, string>][]) {
    const start = Date.now();
    const asked: number[] = [];
    const fetch = async () => {
      asked.push(Date.now() - start);
      const [status, headers] = list[asked.length - 1] ?? [200];
      return new Response("x", { status, headers });
    };
    return { asked, fetch };
  }

  async function run(promise: Promise<Response>) {
    await vi.runAllTimersAsync();
    return (await promise).status;
  }

  test("waits 1 s, then 2 s, then gives the refusal back", async () => {
    const { asked, fetch } = answers([429], [429], [429], [200]);
    expect(await run(withBackoff(fetch, { random: middle })("/"))).toBe(429);
    expect(asked).toEqual([0, 1000, 3000]);
  });

  test("never tries before Retry-After has passed", async () => {
    const { asked, fetch } = answers([429, { "retry-after": "10" }], [200]);
    expect(await run(withBackoff(fetch, { random: () => 0 })("/"))).toBe(200);
    expect(asked).toEqual([0, 10_000]);
  });

  test("waits as RateLimit says where there is no Retry-After", async () => {
    const { asked, fetch } = answers([429, { ratelimit: '"a";r=0;t=6' }], [200]);
    expect(await run(withBackoff(fetch)("/"))).toBe(200);
    expect(asked).toEqual([0, 6_000]);
  });

  test("a wait that is too long is not waited for", async () => {
    const { asked, fetch } = answers([429, { "retry-after": "3600" }]);
    expect(await run(withBackoff(fetch)("/"))).toBe(429);
    expect(asked).toEqual([0]);
  });

  test("other failures are given back at once, 503 unless it names a wait", async () => {
    for (const status of [400, 500, 503]) {
      const { asked, fetch } = answers([status]);
      expect(await run(withBackoff(fetch)("/"))).toBe(status);
      expect(asked).toEqual([0]);
    }
    const { asked, fetch } = answers([503, { "retry-after": "2" }], [200]);
    expect(await run(withBackoff(fetch)("/"))).toBe(200);
    expect(asked).toEqual([0, 2000]);
    const broken = () => Promise.reject(new TypeError("network"));
    await expect(withBackoff(broken)("/")).rejects.toThrow("network");
  });

  test("an abort ends the wait at once, with its own reason", async () => {
    const { asked, fetch } = answers([429, { "retry-after": "10" }]);
    const controller = new AbortController();
    const call = withBackoff(fetch)("/", { signal: controller.signal });
    const ended = call.then(
      () => null,
      (reason) => ({ reason, at: Date.now() }),
    );
    const start = Date.now();
    await vi.advanceTimersByTimeAsync(4_000);
    controller.abort(new Error("never mind"));
    const end = await ended;
    expect(end?.reason).toEqual(new Error("never mind"));
    expect(end?.at).toBe(start + 4_000);
    expect(vi.getTimerCount()).toBe(0);
    expect(asked).toEqual([0]);
  });

  test("a timeout ends the wait with the refusal, which can still be read", async () => {
    const { asked, fetch } = answers([429, { "retry-after": "10" }]);
    const controller = new AbortController();
    const call = withBackoff(fetch)("/", { signal: controller.signal });
    await vi.advanceTimersByTimeAsync(4_000);
    controller.abort(new DOMException("time is up", "TimeoutError"));
    const response = await call;
    expect([response.status, await response.text()]).toEqual([429, "x"]);
    expect(response.headers.get("retry-after")).toBe("10");
    expect(vi.getTimerCount()).toBe(0);
    expect(asked).toEqual([0]);
  });

  test("a refusal that never ends does not hold up the next try", async () => {
    const refusals = [new Response(new ReadableStream(), { status: 429 })];
    const fetch = async () => refusals.pop() ?? new Response();
    expect(await run(withBackoff(fetch)("/"))).toBe(200);
  });

  test("tells of every refusal", async () => {
    const { fetch } = answers([429, { "retry-after": "3", "x-ratelimit-remaining": "0" }], [429]);
    const send = withBackoff(fetch, { attempts: 2, random: middle });
    const told: RateLimitDetail[] = [];
    send.events.addEventListener(RATE_LIMIT_EVENT, (event) =>
      told.push((event as CustomEvent<RateLimitDetail>).detail),
    );
    const start = Date.now();
    await run(send("/"));
    expect(RATE_LIMIT_EVENT).toBe("rate-limit-error");
    expect(told).toEqual([
      {
        retryAfter: 3,
        resetTime: new Date(start + 3000),
        remaining: 0,
        attempt: 1,
        willRetry: true,
      },
      {
        retryAfter: 2,
        resetTime: new Date(start + 5000),
        remaining: null,
        attempt: 2,
        willRetry: false,
      },
    ]);
  });

  test("a body that can be read only once is sent once", async () => {
    const { asked, fetch } = answers([429]);
    const body = new ReadableStream();
    expect(await run(withBackoff(fetch)("/", { method: "POST", body }))).toBe(429);
    expect(asked).toEqual([0]);
  });
});

describe("over a real connection", () => {
  let server: Server;
  let url: string;
  let seen: { headers: IncomingHttpHeaders; body: string }[];

  beforeEach(async () => {
    seen = [];
    server = createServer(async (request, response) => {
      let body = "";
      for await (const chunk of request) body += chunk;
      seen.push({ headers: request.headers, body });
      response.writeHead(seen.length % 2 ? 429 : 200, { "retry-after": "1" }).end("done");
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
  });
  afterEach(() => void server.close());

  const send = withBackoff(fetch, { random: () => 0 });

  test("one idempotency key and one body go over all tries, and another call has another", async () => {
    expect((await send(url, { method: "POST", body: "hello" })).status).toBe(200);
    expect((await send(new Request(url, { method: "POST", body: "request" }))).status).toBe(200);
    expect(seen.map((one) => one.body)).toEqual(["hello", "hello", "request", "request"]);
    const keys = seen.map((one) => one.headers["idempotency-key"]);
    expect(keys[0]).toMatch(/^[0-9a-f]{32}$/);
    expect(keys).toEqual([keys[0], keys[0], keys[2], keys[2]]);
    expect(keys[2]).not.toBe(keys[0]);
  });

  test("a caller's own key is kept; a GET carries none, nor does who wants none", async () => {
    const headers = { "Idempotency-Key": "mine" };
    await send(url, { method: "POST", headers });
    await send(url);
    await withBackoff(fetch, { idempotencyKey: false })(url, { method: "POST" });
    const keys = seen.map((one) => one.headers["idempotency-key"]);
    expect(keys).toEqual(["mine", "mine", undefined, undefined, undefined, undefined]);
  });
});
