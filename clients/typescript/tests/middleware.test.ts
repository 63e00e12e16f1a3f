import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { type RateLimitOptions, rateLimit, Tollgate, withBackoff } from "../src/index.js";
import { perUser, type Server, startServer } from "./support/server.js";

let server: Server;
let gate: Tollgate;
let user = 0;

beforeAll(async () => {
  server = await startServer();
  gate = new Tollgate({ url: server.url });
  await gate.policies.put("api", perUser(2, "60s"));
  await gate.policies.put("closed", perUser(0, "60s"));
});
afterAll(() => server?.stop());
beforeEach(() => {
  user += 1;
});

const hello = async () => new Response("hello");
const request = (path = "/") => new Request(`http://example.com${path}`);
const used = async () => (await gate.peek("api", { user: `${user}` })).limits[0]?.used;

function limit(options: Partial<RateLimitOptions> = {}) {
  return rateLimit({ gate, policy: "api", subject: () => ({ user: `${user}` }), ...options });
}

/** Calls whose limiter never answers. */
async function silentGate() {
  const silent = createServer(() => {});
  await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
  const { port } = silent.address() as AddressInfo;
  const close = () => {
    silent.closeAllConnections();
    silent.close();
  };
  return { gate: new Tollgate({ url: `http://127.0.0.1:${port}` }), close };
}

test("an allowed request passes, and its answer says how it stands", async () => {
  const response = await limit()(hello)(request());
  expect(await response.text()).toBe("hello");
  expect(response.headers.get("ratelimit")).toMatch(/^"user";r=1;t=\d+$/);
  expect(response.headers.get("ratelimit-policy")).toBe('"user";q=2;w=60');
  expect(response.headers.get("x-ratelimit-limit")).toBe("2");
  expect(response.headers.get("x-ratelimit-remaining")).toBe("1");
  expect(Number(response.headers.get("x-ratelimit-reset"))).toBeGreaterThan(1e9);
  expect(response.headers.get("retry-after")).toBeNull();
});

test("a refused request is answered 429 as the seed has it, and the handler is not run", async () => {
  let runs = 0;
  const handler = limit()(async () => {
    runs += 1;
    return new Response();
  });
  await handler(request());
  await handler(request());
  const response = await handler(request());
  expect(response.status).toBe(429);
  expect(response.headers.get("content-type")).toBe("application/json");
  const wait = Number(response.headers.get("retry-after"));
  expect(wait).toBeGreaterThan(50);
  const body = await response.json();
  expect(body).toEqual({ ok: false, error: expect.any(String), retry_after: wait });
  expect(body.error).toContain("try again in");
  expect(response.headers.get("x-ratelimit-remaining")).toBe("0");
  expect(response.headers.get("ratelimit")).toMatch(/^"user";r=0;t=\d+$/);
  expect(runs).toBe(2);
});

test("or as a problem document", async () => {
  const handler = limit({ format: "problem", cost: 2 })(hello);
  await handler(request());
  const response = await handler(request());
  expect(response.status).toBe(429);
  expect(response.headers.get("content-type")).toBe("application/problem+json");
  expect(await response.json()).toMatchObject({
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    status: 429,
    "violated-policies": ["user"],
    retry_after: Number(response.headers.get("retry-after")),
  });
});

test("what can never pass is 422 and names no wait", async () => {
  for (const options of [{ cost: 3 }, { policy: "closed" }]) {
    const response = await limit(options)(hello)(request());
    expect(response.status).toBe(422);
    expect(response.headers.get("retry-after")).toBeNull();
    expect((await response.json()).ok).toBe(false);
  }
});

test("policy, subject and cost come from the request and what the platform gives with it", async () => {
  const handler = rateLimit<[{ user: string }]>({
    gate,
    policy: (request) => (new URL(request.url).pathname === "/paid" ? "api" : null),
    subject: async (_request, context) => ({ user: context.user }),
    cost: (request) => Number(request.headers.get("items") ?? 1),
  })(async (_request, context) => new Response(context.user));
  const context = { user: `${user}` };
  const free = await handler(request("/free"), context);
  expect([free.status, free.headers.get("ratelimit")]).toEqual([200, null]);
  const paid = new Request("http://example.com/paid", { headers: { items: "2" } });
  expect(await (await handler(paid, context)).text()).toBe(`${user}`);
  expect(await used()).toBe(2);
});

test("a platform's own request and context keep their types", async () => {
  class PlatformRequest extends Request {
    readonly region = "eu";
  }
  const given = new PlatformRequest("http://example.com/");
  const bySubject = rateLimit({
    gate,
    policy: "api",
    subject: (_request, context: { ip: string }) => ({ user: `${user}${context.ip}` }),
  });
  const one = bySubject(
    (request: PlatformRequest, { ip }: { ip: string; more: number }) =>
      new Response(`${request.region} ${ip}`),
  );
  expect(await (await one(given, { ip: "192.0.2.1", more: 1 })).text()).toBe("eu 192.0.2.1");
  // The handler may be given more than `subject` looks at.
  const two = limit()(async (_request: Request, env: { n: number }, ctx: { m: number }) =>
    Response.json(env.n + ctx.m),
  );
  expect(await (await two(given, { n: 1 }, { m: 2 })).json()).toBe(3);
});

test("who cannot be told apart is turned away before anything is counted", async () => {
  const nameless = limit({ subject: (request) => ({ user: request.headers.get("x") }) });
  const response = await nameless(hello)(request());
  expect(response.status).toBe(400);
  expect((await response.json()).error).toContain("user");
  const stranger = limit({ subject: () => new Response("who?", { status: 401 }) });
  expect((await stranger(hello)(request())).status).toBe(401);
});

test("a subject that the server finds malformed is refused with 400, and is never a way around", async () => {
  let runs = 0;
  const errors: unknown[] = [];
  const report = (error: unknown) => void errors.push(error);
  const handler = async () => {
    runs += 1;
    return new Response();
  };
  // Longer than a value may be; longer than a body may be; no Unicode.
  for (const malformed of ["x".repeat(1025), "x".repeat(400_000), "\ud800"]) {
    const subject = () => ({ user: malformed });
    for (const onError of ["allow", "refuse"] as const) {
      const response = await limit({ subject, onError, report })(handler)(request());
      expect(response.status).toBe(400);
      expect(await response.json()).toEqual({ ok: false, error: expect.any(String) });
      expect(response.headers.get("ratelimit")).toBeNull();
    }
  }
  const tooLong = { subject: () => ({ user: "x".repeat(1025) }), onError: "allow" } as const;
  const problem = await limit({ ...tooLong, format: "problem" })(handler)(request());
  expect(problem.headers.get("content-type")).toBe("application/problem+json");
  expect(await problem.json()).toMatchObject({
    status: 400,
    detail: expect.stringContaining("1025 bytes"),
  });
  expect(runs).toBe(0);
  // The client's fault, so not the operator's business.
  expect(errors).toEqual([]);
});

test("a handler that fails gives back what was spent, unless told not to", async () => {
  const broken = async () => new Response("oh", { status: 502 });
  const response = await limit()(broken)(request());
  expect([response.status, await response.text()]).toEqual([502, "oh"]);
  expect(await used()).toBe(0);
  const throwing = limit()(() => Promise.reject(new Error("bug")));
  await expect(throwing(request())).rejects.toThrow("bug");
  expect(await used()).toBe(0);
  await limit({ refundWhen: false })(broken)(request());
  expect(await used()).toBe(1);
  await limit({ refundWhen: (response) => response.status === 200 })(hello)(request());
  expect(await used()).toBe(1);
});

test("an answer whose headers cannot be changed has them all the same", async () => {
  const moved = await limit()(async () => Response.redirect("http://example.com/there"))(request());
  expect(moved.status).toBe(302);
  expect(moved.headers.get("location")).toBe("http://example.com/there");
  expect(moved.headers.get("x-ratelimit-remaining")).toBe("1");
  const fetched = await limit()(() => fetch(`${server.url}/healthz`))(request());
  expect(fetched.headers.get("x-ratelimit-remaining")).toBe("0");
  expect(await fetched.json()).toBeTruthy();
});

test("a limiter whose fetch waits is not waited for longer than told, and refuses as ever", async () => {
  const patient = new Tollgate({ url: server.url, fetch: withBackoff(fetch) });
  const handler = limit({ gate: patient, timeoutMs: 400, cost: 2 })(hello);
  expect((await handler(request())).status).toBe(200);
  const refused = await handler(request());
  expect([refused.status, (await refused.json()).retry_after > 50]).toEqual([429, true]);
});

test("two limits in a row both tell their state, and a refusal its own", async () => {
  await gate.policies.put("wide", perUser(9, "60s"));
  const handler = limit({ policy: "wide" })(limit()(hello));
  const passed = await handler(request());
  expect(passed.headers.get("ratelimit")).toMatch(/^"user";r=1;t=\d+, "user";r=8;t=\d+$/);
  expect(passed.headers.get("ratelimit-policy")).toBe('"user";q=2;w=60, "user";q=9;w=60');
  expect(passed.headers.get("x-ratelimit-remaining")).toBe("1");
  await handler(request());
  const refused = await handler(request());
  const wait = refused.headers.get("retry-after");
  expect([refused.status, (await refused.json()).retry_after]).toEqual([429, Number(wait)]);
  expect(refused.headers.get("x-ratelimit-limit")).toBe("2");
  expect(refused.headers.get("x-ratelimit-remaining")).toBe("0");
  expect(refused.headers.get("ratelimit")).toMatch(/^"user";r=0;t=\d+, "user";r=6;t=\d+$/);
  // Also where the headers of what it answers cannot be changed.
  const again = limit({ policy: "wide" })(() =>
    fetch(`${server.url}/api/v1/check`, {
      method: "POST",
      body: JSON.stringify({ policy: "api", subject: { user: `${user}` } }),
    }),
  );
  const fetched = await again(request());
  expect([fetched.status, fetched.headers.get("x-ratelimit-limit")]).toEqual([429, "2"]);
  expect(fetched.headers.get("ratelimit")).toMatch(/^"user";r=0;t=\d+, "user";r=5;t=\d+$/);
});

test("a client's own idempotency key does not let it pass uncounted", async () => {
  const handler = limit()(hello);
  const headers = { "Idempotency-Key": "always the same" };
  const statuses = [];
  for (let i = 0; i < 3; i++) {
    statuses.push((await handler(new Request("http://example.com/", { headers }))).status);
  }
  expect(statuses).toEqual([200, 200, 429]);
});

test("exactly as many as the limit allows pass, however many come at once", async () => {
  const handler = limit()(hello);
  const responses = await Promise.all(Array.from({ length: 20 }, () => handler(request())));
  expect(responses.filter((response) => response.ok)).toHaveLength(2);
});

test("when the limiter cannot be asked, the request is refused or passes, as told", async () => {
  const errors: unknown[] = [];
  const report = (error: unknown) => void errors.push(error);
  const gone = new Tollgate({ url: "http://127.0.0.1:9" });
  const silent = await silentGate();
  for (const broken of [gone, silent.gate]) {
    const options = { gate: broken, timeoutMs: 200, report };
    const refused = await limit(options)(hello)(request());
    expect(refused.status).toBe(503);
    expect(refused.headers.get("retry-after")).toBe("1");
    expect(await refused.json()).toEqual({ ok: false, error: "the rate limit check failed" });
    const passed = await limit({ ...options, onError: "allow" })(hello)(request());
    expect(await passed.text()).toBe("hello");
    expect(passed.headers.get("ratelimit")).toBeNull();
  }
  silent.close();
  expect(errors).toHaveLength(4);
  const ours = await limit({ policy: "nobody", format: "problem", report })(hello)(request());
  expect(ours.status).toBe(500);
  expect(await ours.json()).toMatchObject({ status: 500, detail: "the rate limit check failed" });
});
