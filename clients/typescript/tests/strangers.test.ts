/** Answers of what is no Tollgate, and what can never be asked: told clearly, never taken for a yes. */

import { createServer, type Server as HttpServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { rateLimit, Tollgate, TollgateError } from "../src/index.js";
import { perUser, type Server, startServer } from "./support/server.js";

let server: Server;
beforeAll(async () => {
  server = await startServer({ TOLLGATE_ADMIN_TOKEN: "secret-of-this-test" });
});
afterAll(() => server?.stop());

describe("a stranger's answer", () => {
  let stranger: HttpServer;
  let gate: Tollgate;
  let answer: { status: number; headers?: Record<string, string>; body: string };

  beforeEach(async () => {
    stranger = createServer((_, response) =>
      response.writeHead(answer.status, answer.headers).end(answer.body),
    );
    await new Promise<void>((resolve) => stranger.listen(0, "127.0.0.1", resolve));
    gate = new Tollgate({ url: `http://127.0.0.1:${(stranger.address() as AddressInfo).port}` });
  });
  afterEach(() => void stranger.close());

  const bodies = [
    '{"status":"ok"}',
    '{"allowed":"yes","limits":[]}',
    '{"allowed":true}',
    "true",
    "null",
    "[]",
  ];

  test.each(bodies)("%s is no decision", async (body) => {
    answer = { status: 200, body };
    for (const face of ["check", "peek"] as const) {
      const error = await gate[face]("p").then(JSON.stringify, (error: unknown) => error);
      expect(error).toBeInstanceOf(TollgateError);
      expect((error as TollgateError).detail).toContain("is this a tollgate?");
    }
  });

  test("of a failure is not a yes, whatever it says", async () => {
    answer = { status: 500, body: '{"allowed":true,"limits":[]}' };
    await expect(gate.check("p")).rejects.toMatchObject({ status: 500 });
  });

  test("is no refund, slot or list either", async () => {
    answer = { status: 200, body: '{"status":"ok"}' };
    const calls = [
      () => gate.refund("r"),
      () => gate.slots.assign({ eventId: "e" }),
      () => gate.slots.assignAll([{ eventId: "e" }]),
      () => gate.slots.get("e"),
      () => gate.slots.cancel("e"),
    ];
    for (const call of calls) await expect(call()).rejects.toThrow("is this a tollgate?");
    answer.body = "[]";
    await expect(gate.policies.list()).rejects.toThrow("is this a tollgate?");
  });

  test("that leads elsewhere is not followed, and no token goes there", async () => {
    answer = { status: 302, headers: { Location: `${server.url}/healthz` }, body: "" };
    const error = await gate.check("p").catch((error: unknown) => error);
    expect(error).toMatchObject({ status: 302, detail: expect.stringContaining("redirect") });
  });

  test("never lets a request pass, unless failures do", async () => {
    const errors: unknown[] = [];
    const report = (error: unknown) => void errors.push(error);
    const options = { gate, policy: "p", subject: () => ({ user: "ada" }), report };
    const hello = async () => new Response("hello");
    const ask = (onError: "refuse" | "allow") =>
      rateLimit({ ...options, onError })(hello)(new Request("http://example.com/"));
    for (const given of [
      { status: 200, body: '{"status":"ok"}' },
      { status: 302, headers: { Location: `${server.url}/healthz` }, body: "" },
    ]) {
      answer = given;
      expect((await ask("refuse")).status).toBe(500);
      expect(await (await ask("allow")).text()).toBe("hello");
    }
    expect(errors).toHaveLength(4);
    for (const error of errors) expect(error).toBeInstanceOf(TollgateError);
  });
});

describe("what can never be asked", () => {
  const url = "http://127.0.0.1:8080";

  test("a token read from a file is taken without its line end", async () => {
    const gate = new Tollgate({ url: server.url, token: " secret-of-this-test\r\n" });
    expect((await gate.policies.list()).policies).toBeInstanceOf(Array);
  });

  test.each(["hidden\nx", "hiddené", "hid den"])(
    "a secret no header can carry is refused at once and not printed",
    (secret) => {
      for (const options of [{ token: secret }, { apiKey: secret }]) {
        let error: unknown;
        try {
          new Tollgate({ url, ...options });
        } catch (thrown) {
          error = thrown;
        }
        expect(error).toBeInstanceOf(TypeError);
        expect(String(error)).toMatch(/token|apiKey/);
        expect(String(error)).not.toContain("hid");
      }
    },
  );

  test.each([".", "..", ""])("an id of %j is refused, not taken for another path", async (id) => {
    const gate = new Tollgate({ url: server.url, token: "secret-of-this-test" });
    const calls = [
      () => gate.slots.cancel(id),
      () => gate.policies.get(id),
      () => gate.policies.versions(id),
      () => gate.mail.tenants.delete(id),
      () => gate.mail.tenants.token(id),
      () => gate.mail.accounts.delete(id),
    ];
    for (const call of calls) await expect(call()).rejects.toThrow(RangeError);
  });

  test("a subject that is none is the set-up's fault, and said so", async () => {
    const gate = new Tollgate({ url: server.url, token: "secret-of-this-test" });
    await gate.policies.put("api", perUser(2, "60s"));
    for (const nobody of [null, undefined, "ada"]) {
      const subject = () => nobody as unknown as Record<string, string>;
      const limit = rateLimit({ gate, policy: "api", subject, onError: "allow" });
      const asked = limit(async () => new Response())(new Request("http://example.com/"));
      await expect(asked).rejects.toThrow("subject must");
    }
  });

  test("a timeout that is no number is refused", async () => {
    const gate = new Tollgate({ url: server.url, timeoutMs: Number.NaN });
    await expect(gate.check("default")).rejects.toThrow(RangeError);
  });
});
