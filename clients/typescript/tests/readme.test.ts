/** Every snippet of the README is type-checked against the built package, and run. */

import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { format } from "node:util";
import { afterAll, beforeAll, beforeEach, expect, test, vi } from "vitest";
import { startRefusing } from "./support/refusing.js";
import { type Server, startServer } from "./support/server.js";
import { blocks, load, promised, snippets, writeSnippets } from "./support/snippets.js";

let server: Server;
let service: Awaited<ReturnType<typeof startRefusing>>;
let directory: string;
let printed: string[];

beforeAll(async () => {
  server = await startServer();
  service = await startRefusing();
  const change = (code: string) =>
    code
      .replaceAll("http://127.0.0.1:8080", server.url)
      .replaceAll("https://example.com/categorize", service.url);
  directory = writeSnippets(change, "run");
  vi.spyOn(console, "log").mockImplementation((...values) => {
    printed.push(format(...values));
  });
});
beforeEach(() => {
  printed = [];
});
afterAll(async () => {
  vi.restoreAllMocks();
  service?.close();
  await server?.stop();
});

test("every snippet has a name to run by", () => {
  expect(snippets()).toHaveLength(blocks());
  expect(blocks()).toBe(5);
});

test("all snippets are well typed", () => {
  const checked = writeSnippets((code) => code, "check");
  const config = { extends: "../../tsconfig.check.json", include: ["."] };
  writeFileSync(join(checked, "tsconfig.json"), JSON.stringify(config));
  const tsc = join(import.meta.dirname, "../node_modules/typescript/bin/tsc");
  execFileSync(process.execPath, [tsc, "-p", checked], { stdio: "inherit" });
});

test("the client prints what it says", async () => {
  await load(directory, "client");
  expect(printed).toEqual(promised("client"));
  expect(printed).toHaveLength(5);
});

test("the middleware limits who signed in, and only the route it names", async () => {
  const { default: handler } = await load(directory, "middleware");
  const call = async (path: string, authorization?: string) => {
    const headers = new Headers(authorization ? { authorization } : {});
    return (await handler(new Request(`https://service.example${path}`, { headers }))).status;
  };
  expect(await call("/categorize")).toBe(401);
  const grace = "Bearer the-token-of-grace";
  const statuses = [];
  for (let i = 0; i < 3; i++) statuses.push(await call("/categorize", grace));
  expect(statuses).toEqual([200, 200, 429]);
  expect(await call("/free", grace)).toBe(200);
});

test("the fetch that waits prints what it says", async () => {
  await load(directory, "backoff");
  expect(printed[0]).toMatch(/^refused; again in [12] s: true$/);
  expect(printed.slice(1)).toEqual(promised("backoff"));
});
