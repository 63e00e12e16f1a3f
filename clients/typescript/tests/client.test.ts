import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { RATE_LIMIT_EVENT, Tollgate, TollgateError, withBackoff } from "../src/index.js";
import { perUser, type Server, startServer } from "./support/server.js";

let server: Server;
let gate: Tollgate;
const token = "an-admin-token-of-this-test";

beforeAll(async () => {
  server = await startServer({ TOLLGATE_ADMIN_TOKEN: token });
  gate = new Tollgate({ url: `${server.url}/`, token });
});
afterAll(() => server?.stop());

/** The error a call ends in. */
async function failure(call: Promise<unknown>): Promise<TollgateError> {
  const error = await call.then(
    () => undefined,
    (error: unknown) => error,
  );
  expect(error).toBeInstanceOf(TollgateError);
  return error as TollgateError;
}

describe("checks", () => {
  beforeAll(() => gate.policies.put("calls", perUser(2, "60s")));

  test("are allowed, then refused, and a refusal is data", async () => {
    const first = await gate.check("calls", { user: "ada" });
    expect(first).toMatchObject({ allowed: true, policy: "calls", cost: 1 });
    expect(first.limits[0]).toMatchObject({ name: "user", max: 2, used: 1, remaining: 1 });
    await gate.check("calls", { user: "ada" });
    const refused = await gate.check("calls", { user: "ada" });
    expect(refused.allowed).toBe(false);
    expect(refused.retry_after).toBeGreaterThan(50);
    expect(Date.parse(refused.retry_at ?? "")).toBeGreaterThan(Date.parse(refused.decided_at));
    expect(refused["violated-policies"]).toEqual(["user"]);
    expect(refused.detail).toContain("2 of 2 used");
  });

  test("a cost that can never fit is refused without a wait", async () => {
    const decision = await gate.check("calls", { user: "big" }, { cost: 3 });
    expect(decision.allowed).toBe(false);
    expect(decision.retry_after).toBeUndefined();
  });

  test("a peek counts nothing", async () => {
    await gate.check("calls", { user: "eve" });
    for (let i = 0; i < 3; i++) {
      const peek = await gate.peek("calls", { user: "eve" }, { cost: 2 });
      expect(peek).toMatchObject({ allowed: false, cost: 2 });
      expect(peek.limits[0]).toMatchObject({ used: 1 });
    }
  });

  test("a refund gives back, once", async () => {
    const { receipt = "" } = await gate.check("calls", { user: "bob" }, { cost: 2 });
    expect(await gate.refund(receipt)).toEqual({ refunded: true });
    expect(await gate.refund(receipt)).toMatchObject({ refunded: false });
    expect((await gate.check("calls", { user: "bob" }, { cost: 2 })).allowed).toBe(true);
    expect((await failure(gate.refund("forged"))).status).toBe(400);
  });

  test("an idempotency key makes a repetition safe", async () => {
    const again = () => gate.check("calls", { user: "kim" }, { idempotencyKey: "once" });
    expect((await again()).receipt).toBe((await again()).receipt);
    expect((await gate.peek("calls", { user: "kim" })).limits[0]?.used).toBe(1);
  });

  test("with a fetch that waits, a refusal is waited out", async () => {
    await gate.policies.put("brief", perUser(1, "2s"));
    const patient = new Tollgate({ url: server.url, token, fetch: withBackoff(fetch) });
    await patient.check("brief", { user: "ada" });
    const start = performance.now();
    expect((await patient.check("brief", { user: "ada" })).allowed).toBe(true);
    expect(performance.now() - start).toBeGreaterThan(900);
  });
});

describe("time", () => {
  beforeAll(() => gate.policies.put("rare", perUser(1, "60s")));

  test("that is up while a refusal is waited out leaves the refusal, an abort nothing", async () => {
    const patient = new Tollgate({ url: server.url, token, fetch: withBackoff(fetch) });
    await patient.check("rare", { user: "ada" });
    const refused = await patient.check("rare", { user: "ada" }, { timeoutMs: 300 });
    expect(refused.allowed).toBe(false);
    expect(refused.retry_after).toBeGreaterThan(50);
    const controller = new AbortController();
    const reason = new Error("changed my mind");
    const waits = withBackoff(fetch);
    waits.events.addEventListener(RATE_LIMIT_EVENT, () => controller.abort(reason));
    const given = new Tollgate({ url: server.url, token, fetch: waits });
    const { signal } = controller;
    await expect(given.check("rare", { user: "ada" }, { signal })).rejects.toBe(reason);
  });

  test("may be any that is not less than none, also longer than a timer", async () => {
    for (const timeoutMs of [2 ** 31, 2 ** 32, 1e12, Infinity, 9999.5]) {
      expect((await gate.peek("rare", { user: "eve" }, { timeoutMs })).allowed).toBe(true);
    }
    for (const timeoutMs of [-1, Number.NaN]) {
      const call = gate.peek("rare", { user: "eve" }, { timeoutMs });
      await expect(call).rejects.toThrow(new RangeError(`timeoutMs is ${timeoutMs}`));
    }
  });
});

describe("errors", () => {
  test("carry the problem document's fields", async () => {
    const error = await failure(gate.check("calls", {}));
    expect(error).toMatchObject({ name: "TollgateError", status: 400 });
    expect(error.message).toBe(error.detail);
    expect(error.detail).toContain("user");
    expect(error.requestId).toMatch(/./);
    expect(error.problem).toMatchObject({ status: 400, title: error.title, type: error.type });
    expect(error.retryAfter).toBeUndefined();
  });

  test("name what does not exist, and every fault of a bad policy", async () => {
    expect((await failure(gate.check("nobody", {}))).status).toBe(404);
    const bad = { limits: [{ name: "a", max: 1, per: "soon" }] };
    const error = await failure(gate.policies.put("bad", bad));
    expect(error.status).toBe(400);
    expect(error.errors[0]?.field).toBe("limits[0].per");
  });

  test("say 401 without a token", async () => {
    const stranger = new Tollgate({ url: server.url });
    expect((await failure(stranger.policies.list())).status).toBe(401);
  });

  test("have status 0 when nobody answers, in time or at all", async () => {
    const nobody = new Tollgate({ url: "http://127.0.0.1:9" });
    const error = await failure(nobody.check("calls", {}));
    expect(error.status).toBe(0);
    expect(error.detail).toContain("http://127.0.0.1:9");

    const silent = createServer(() => {});
    await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
    const { port } = silent.address() as AddressInfo;
    const late = new Tollgate({ url: `http://127.0.0.1:${port}`, timeoutMs: 50 });
    expect((await failure(late.check("calls", {}))).status).toBe(0);
    const reason = new Error("changed my mind");
    const given = late.check("calls", {}, { signal: AbortSignal.abort(reason) });
    await expect(given).rejects.toBe(reason);
    silent.closeAllConnections();
    silent.close();
  });

  test("keep the seconds to wait", async () => {
    const busy = createServer((_, response) =>
      response.writeHead(503, { "Retry-After": "7" }).end("not even JSON"),
    );
    await new Promise<void>((resolve) => busy.listen(0, "127.0.0.1", resolve));
    const { port } = busy.address() as AddressInfo;
    const error = await failure(new Tollgate({ url: `http://127.0.0.1:${port}` }).alerts());
    expect(error).toMatchObject({ status: 503, retryAfter: 7 });
    busy.close();
  });

  test("an answer that is no JSON is one", async () => {
    const { detail } = await failure(gate.call({ method: "GET", path: "/metrics" }));
    expect(detail).toContain("not JSON");
  });

  test("an address that is none is refused at once", () => {
    expect(() => new Tollgate({ url: "localhost" })).toThrow();
  });
});

describe("slots", () => {
  const requestedTime = new Date("2030-01-01T00:00:00Z");
  const configName = "payments";
  beforeAll(() => gate.config.set({ configName, maxPerWindow: 2, windowSize: "PT4S" }));

  test("are given, seen again, listed and cancelled", async () => {
    const slot = await gate.slots.assign({ eventId: "pay/1 ü", configName, requestedTime });
    expect(slot).toEqual({
      eventId: "pay/1 ü",
      scheduledTime: "2030-01-01T00:00:00.000000Z",
      delayMs: 0,
    });
    const kept = await gate.slots.get("pay/1 ü");
    expect(kept).toMatchObject({ ...slot, configName, configVersion: 1 });
    expect(kept.cancelledAt).toBeUndefined();
    expect((await gate.slots.cancel("pay/1 ü")).cancelledAt).toMatch(/Z$/);
    const conflict = gate.slots.assign({ eventId: "pay/1 ü", configName, requestedTime });
    expect((await failure(conflict)).status).toBe(409);
  });

  test("are not asked for at a time that is none", async () => {
    const never = { eventId: "never", configName, requestedTime: new Date("2027-13-45") };
    await expect(gate.slots.assign(never)).rejects.toThrow("requestedTime is Invalid Date");
    await expect(gate.slots.assignAll([never])).rejects.toThrow(RangeError);
    expect((await failure(gate.slots.get("never"))).status).toBe(404);
  });

  test("of a batch come in order, each a slot or a problem", async () => {
    const { results } = await gate.slots.assignAll([
      { eventId: "b1", configName, requestedTime: "2031-01-01T00:00:00Z" },
      { eventId: "b2", configName: "nobody" },
      { eventId: "b3", configName, requestedTime: "2031-01-01T00:00:00Z" },
    ]);
    expect(results).toMatchObject([{ eventId: "b1" }, { status: 404 }, { eventId: "b3" }]);
    const from = new Date("2031-01-01T00:00:00Z");
    const to = new Date("2031-01-02T00:00:00Z");
    const page = await gate.slots.list({ configName, from, to, limit: 1 });
    expect(page.slots.map((slot) => slot.eventId)).toEqual(["b1"]);
    const rest = await gate.slots.list({ configName, from, to, cursor: page.nextCursor });
    expect(rest.slots.map((slot) => slot.eventId)).toEqual(["b3"]);
    const { windows, windowSize } = await gate.windows({ configName, from, to });
    expect(windowSize).toBe("PT4S");
    expect(windows).toMatchObject([{ start: "2031-01-01T00:00:00.000000Z", count: 2, max: 2 }]);
  });
});

describe("administration", () => {
  test("configs are set, read and flushed", async () => {
    const config = { configName: "seed", maxPerWindow: 100, windowSize: "PT4S" };
    expect(await gate.config.set(config)).toMatchObject({ ...config, version: 1 });
    expect(await gate.config.get("seed")).toMatchObject(config);
    expect(await gate.config.get()).toMatchObject({ configName: "default" });
    expect(await gate.config.flush()).toEqual({ status: "cache flushed" });
  });

  test("policies are put, listed, versioned and deleted", async () => {
    const made = await gate.policies.put("p", perUser(1, "60s"));
    expect(made).toMatchObject({ name: "p", version: 1, changed: true });
    expect((await gate.policies.put("p", perUser(2, "60s"))).version).toBe(2);
    expect((await gate.policies.get("p")).limits[0]?.max).toBe(2);
    const { policies } = await gate.policies.list();
    expect(policies.map((policy) => policy.name)).toContain("p");
    expect((await gate.policies.delete("p")).deleted).toBe(true);
    const { versions } = await gate.policies.versions("p");
    expect(versions.map((version) => version.deleted)).toEqual([true, false, false]);
  });

  test("tokens are made, listed and revoked", async () => {
    const { token: given } = await gate.tokens.create({ scope: "check", name: "web" });
    const web = new Tollgate({ url: server.url, token: given });
    expect((await web.check("default")).allowed).toBe(true);
    const mine = (await gate.tokens.list()).tokens.filter(({ name }) => name === "web");
    expect(mine).toMatchObject([{ scope: "check" }]);
    expect(await gate.tokens.delete(mine[0]?.id ?? "")).toEqual({ deleted: true });
    expect((await failure(web.check("default"))).status).toBe(401);
  });

  test("readiness is asked for, and slots are counted again", async () => {
    expect(await gate.ready()).toBe(true);
    expect(await new Tollgate({ url: "http://127.0.0.1:9" }).ready()).toBe(false);
    expect(await gate.slots.verify()).toMatchObject({ configName: "default", drifts: [] });
  });

  test("an override is put, listed and taken away", async () => {
    await gate.policies.put("own", perUser(1, "60s"));
    const name = { policy: "own", limit: "user", subject: { user: "vip" } };
    expect(await gate.overrides.put({ ...name, max: 9 })).toMatchObject({ ...name, max: 9 });
    expect((await gate.check("own", { user: "vip" })).limits[0]?.max).toBe(9);
    expect((await gate.overrides.list()).overrides).toMatchObject([{ ...name, max: 9 }]);
    expect(await gate.overrides.delete(name)).toEqual({ deleted: true });
    expect((await failure(gate.overrides.delete(name))).status).toBe(404);
  });
});
