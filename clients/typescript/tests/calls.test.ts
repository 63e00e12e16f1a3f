/** What the less used calls send, and, where the server has them, what it answers. */

import { createServer, type Server as HttpServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type Letter, Tollgate } from "../src/index.js";
import { perUser, type Server, startServer } from "./support/server.js";

const account = { id: "a 1", tenant_id: "t", host: "smtp.example.com", port: 587, use_tls: true };
const message = {
  id: "m1",
  tenant_id: "t",
  account_id: "a 1",
  from: "ada@example.com",
  to: ["bob@example.com"],
  subject: "hello",
};
const letter: Letter = {
  from: "ada@example.com",
  to: "bob@example.com",
  subject: "hello",
  text: "hi",
};

describe("on the wire", () => {
  let recorder: HttpServer;
  let gate: Tollgate;
  let seen: unknown[];

  beforeAll(async () => {
    recorder = createServer(async (request, response) => {
      let body = "";
      for await (const chunk of request) body += chunk;
      const { "x-api-token": token, "x-api-key": key, "idempotency-key": once } = request.headers;
      seen.push([`${request.method} ${request.url}`, body && JSON.parse(body), token, key, once]);
      response.end("{}");
    });
    await new Promise<void>((resolve) => recorder.listen(0, "127.0.0.1", resolve));
    const { port } = recorder.address() as AddressInfo;
    gate = new Tollgate({ url: `http://127.0.0.1:${port}`, token: "tok", apiKey: "key" });
  });
  afterAll(() => void recorder.close());
  beforeEach(() => {
    seen = [];
  });

  const calls: [string, (gate: Tollgate) => Promise<unknown>, unknown?][] = [
    [
      "POST /tenant",
      (gate) => gate.mail.tenants.create({ id: "t", name: "T" }),
      { id: "t", name: "T" },
    ],
    ["GET /tenants", (gate) => gate.mail.tenants.list()],
    ["POST /tenant/t/token", (gate) => gate.mail.tenants.token("t")],
    ["DELETE /tenant/t", (gate) => gate.mail.tenants.delete("t")],
    ["POST /account", (gate) => gate.mail.accounts.create(account), account],
    ["GET /accounts?tenant_id=t", (gate) => gate.mail.accounts.list("t")],
    ["DELETE /account/a%201?tenant_id=t", (gate) => gate.mail.accounts.delete("a 1", "t")],
    [
      "POST /commands/add-messages",
      (gate) => gate.mail.messages.add([message]),
      { messages: [message] },
    ],
    [
      "GET /messages?tenant_id=t&status=deferred&limit=5",
      (gate) => gate.mail.messages.list({ tenant_id: "t", status: "deferred", limit: 5 }),
    ],
    ["GET /messages/m%201/attempts?tenant_id=t", (gate) => gate.mail.messages.attempts("m 1", "t")],
    [
      "POST /keys",
      (gate) => gate.mail.keys.create({ account_id: "a 1", daily_limit: 5 }),
      { account_id: "a 1", daily_limit: 5 },
    ],
    ["GET /keys?tenant_id=t", (gate) => gate.mail.keys.list("t")],
    [
      "PUT /keys/k%201",
      (gate) => gate.mail.keys.put("k 1", { enabled: false }),
      { enabled: false },
    ],
    ["DELETE /keys/k%201", (gate) => gate.mail.keys.delete("k 1")],
    ["GET /admin/slots/verify?configName=c", (gate) => gate.slots.verify({ configName: "c" })],
    ["POST /admin/tokens", (gate) => gate.tokens.create({ scope: "check" }), { scope: "check" }],
    ["GET /admin/tokens", (gate) => gate.tokens.list()],
    ["DELETE /admin/tokens/t%201", (gate) => gate.tokens.delete("t 1")],
    ["GET /readyz", (gate) => gate.ready()],
    ["POST /api/v1/send", (gate) => gate.mail.send(letter), letter],
    ["GET /api/v1/usage", (gate) => gate.mail.usage()],
    ["POST /commands/run-now", (gate) => gate.mail.command("run-now"), {}],
    [
      "POST /commands/suspend",
      (gate) => gate.mail.command("suspend", { tenant_id: "t" }),
      { tenant_id: "t" },
    ],
    ["GET /status", (gate) => gate.mail.status()],
    ["GET /status?tenant_id=t", (gate) => gate.mail.status("t")],
    [
      "GET /admin/offenders?since=1h&limit=20",
      (gate) => gate.offenders({ since: "1h", limit: 20 }),
    ],
    ["GET /admin/alerts", (gate) => gate.alerts()],
    ["GET /admin/alerts?cursor=7&limit=2", (gate) => gate.alerts({ cursor: "7", limit: 2 })],
  ];

  test.each(calls)("%s", async (line, call, body = "") => {
    await call(gate);
    expect(seen).toEqual([[line, body, "tok", "key", undefined]]);
  });

  test("a send may carry an idempotency key", async () => {
    await gate.mail.send(letter, { idempotencyKey: "once" });
    expect(seen).toEqual([["POST /api/v1/send", letter, "tok", "key", "once"]]);
  });
});

describe("of a server that has them", () => {
  let server: Server;
  let gate: Tollgate;

  beforeAll(async () => {
    const key = Buffer.alloc(32, 7).toString("base64");
    server = await startServer({ TOLLGATE_MAIL_KEY: key });
    gate = new Tollgate({ url: server.url });
  });
  afterAll(() => server?.stop());

  test("offenders name who was refused most", async (context) => {
    if (!server.has("/admin/offenders")) return context.skip("this server has no offenders yet");
    await gate.policies.put("few", perUser(1, "60s"));
    for (let i = 0; i < 7; i++) await gate.check("few", { user: "greedy" });
    const { offenders } = await gate.offenders({ since: "1h", limit: 5 });
    expect(offenders[0]).toMatchObject({ policy: "few", limit: "user" });
    expect(JSON.stringify(offenders[0])).toContain("greedy");
  });

  test("alerts are read page by page, newest first", async (context) => {
    if (!server.has("/admin/alerts")) return context.skip("this server has no alerts yet");
    await gate.policies.put("alarming", perUser(1, "60s"));
    // A user refused five times raises one.
    for (const user of ["ada", "bob"]) {
      for (let i = 0; i < 6; i++) await gate.check("alarming", { user });
    }
    const isMine = ({ policy }: { policy: string }) => policy === "alarming";
    await expect
      .poll(async () => (await gate.alerts()).alerts.filter(isMine).length, { timeout: 60_000 })
      .toBe(2);
    const all = (await gate.alerts()).alerts;
    const paged = [];
    let cursor: string | undefined;
    do {
      const page = await gate.alerts(cursor ? { cursor, limit: 1 } : { limit: 1 });
      expect(page.alerts).toHaveLength(1);
      paged.push(...page.alerts);
      cursor = page.next_cursor;
    } while (cursor);
    expect(paged).toEqual(all);
  }, 90_000);

  test("mail's tenants and accounts are made, listed and deleted", async (context) => {
    if (!server.has("/account")) return context.skip("this server has no mail relay yet");
    await gate.mail.tenants.create({ id: "t", name: "T" });
    expect((await gate.mail.tenants.list()).tenants).toMatchObject([{ id: "t", name: "T" }]);
    expect(await gate.mail.accounts.create({ ...account, id: "a-1" })).toMatchObject({ ok: true });
    const { accounts } = await gate.mail.accounts.list("t");
    expect(accounts).toMatchObject([{ id: "a-1", host: "smtp.example.com" }]);
    const later = Math.ceil(Date.now() / 1000) + 3600;
    const added = await gate.mail.messages.add([
      { ...message, account_id: "a-1", body: "hi", deferred_ts: later },
    ]);
    expect(added).toMatchObject({ queued: 1, rejected: [] });
    const { messages } = await gate.mail.messages.list({ tenant_id: "t" });
    expect(messages).toMatchObject([{ id: "m1", account_id: "a-1", attempts: 0 }]);
    await gate.mail.status();
    expect(await gate.mail.messages.attempts("m1", "t")).toEqual({ attempts: [] });
    const made = await gate.mail.keys.create({ account_id: "a-1", tenant_id: "t", daily_limit: 5 });
    const sender = new Tollgate({ url: server.url, apiKey: made.api_key });
    expect(await sender.mail.usage()).toMatchObject({ daily_limit: 5, emails_remaining: 5 });
    const changed = await gate.mail.keys.put(made.id, { daily_limit: 7, enabled: false });
    const { keys } = await gate.mail.keys.list("t");
    expect(keys).toEqual([changed]);
    expect(changed).toMatchObject({ id: made.id, daily_limit: 7, enabled: false });
    await gate.mail.keys.delete(made.id);
    expect(await gate.mail.keys.list("t")).toEqual({ keys: [] });
    await gate.mail.command("delete-messages", { tenant_id: "t", ids: ["m1"] });
    await gate.mail.accounts.delete("a-1", "t");
    await gate.mail.tenants.delete("t");
  });
});
