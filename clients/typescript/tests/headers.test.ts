import { describe, expect, test } from "vitest";
import { parseRateLimit, readLimits } from "../src/headers.js";

describe("the RateLimit field", () => {
  test("lists limits with what is left and the seconds to their reset", () => {
    expect(parseRateLimit('"ip";r=3;t=42, "email";r=0;t=3600')).toEqual([
      { name: "ip", remaining: 3, resetSecs: 42 },
      { name: "email", remaining: 0, resetSecs: 3600 },
    ]);
  });

  test("may hold tokens, other parameters, and commas within strings", () => {
    expect(parseRateLimit('a;r=1, "b, \\"c\\";r=9";pk=:YWJj:;r=2;x="y;r=7, z"')).toEqual([
      { name: "a", remaining: 1, resetSecs: null },
      { name: 'b, "c";r=9', remaining: 2, resetSecs: null },
    ]);
  });

  test.each(['"ip";r=3,', '"ip', "!", '"a";r=1 "b";r=2', ",", '"a";r=1,,"b";r=2'])(
    "says nothing when it is malformed: %s",
    (field) => expect(parseRateLimit(field)).toEqual([]),
  );

  test("reads a long hostile field in no time", () => {
    const start = performance.now();
    parseRateLimit(`"${"\\".repeat(50_000)}`);
    parseRateLimit(`a${";r=1".repeat(20_000)}!`);
    parseRateLimit(`a${";  ".repeat(20_000)}`);
    expect(performance.now() - start).toBeLessThan(2_000);
  });
});

describe("the wait", () => {
  const date = "Sun, 15 Nov 2026 12:00:00 GMT";
  const server = Date.parse(date);
  // The machine's clock is an hour slow.
  const now = server - 3_600_000;
  const waitMs = (headers: Record<string, string>) =>
    readLimits(new Headers(headers), now).retryAfterMs;

  test("is Retry-After's before any other", () => {
    expect(waitMs({ "retry-after": "7", ratelimit: '"a";r=0;t=99' })).toBe(7_000);
  });

  test("to an HTTP date is measured by the server's clock, not by ours", () => {
    expect(waitMs({ "retry-after": "Sun, 15 Nov 2026 12:00:09 GMT", date })).toBe(9_000);
  });

  test("is the longest of the limits that have nothing left", () => {
    expect(waitMs({ ratelimit: '"a";r=0;t=5, "b";r=0;t=8, "c";r=1;t=99' })).toBe(8_000);
  });

  test("is the longest of all when what was asked for was more than is left", () => {
    expect(waitMs({ ratelimit: '"a";r=2;t=5, "b";r=3;t=8' })).toBe(8_000);
  });

  test("to X-RateLimit-Reset is measured by the server's clock", () => {
    expect(waitMs({ "x-ratelimit-reset": String(server / 1000 + 11), date })).toBe(11_000);
    expect(waitMs({ "x-ratelimit-reset": "2026-11-15T12:00:12Z", date })).toBe(12_000);
    expect(waitMs({ "x-ratelimit-reset": "13", date })).toBe(13_000);
  });

  test("without a Date header is measured by our own", () => {
    expect(waitMs({ "x-ratelimit-reset": String(server / 1000) })).toBe(3_600_000);
  });

  test("is unknown when nothing, or nonsense, is said", () => {
    expect(waitMs({})).toBeNull();
    expect(waitMs({ "retry-after": "soon", "x-ratelimit-reset": "-1e9x" })).toBeNull();
  });
});

test("what is left is the least of all limits, or what X-RateLimit-Remaining says", () => {
  const remaining = (headers: Record<string, string>) => readLimits(new Headers(headers)).remaining;
  expect(remaining({ ratelimit: '"a";r=4, "b";r=2', "x-ratelimit-remaining": "9" })).toBe(2);
  expect(remaining({ "x-ratelimit-remaining": "9" })).toBe(9);
  expect(remaining({})).toBeNull();
});
