import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";

const root = join(import.meta.dirname, "..");

test("the package holds what was built and no more, and depends on nothing", () => {
  const pack = ["pack", "--dry-run", "--json", "--ignore-scripts", "--loglevel=error"];
  const [packed] = JSON.parse(execFileSync("npm", pack, { cwd: root, encoding: "utf8" }));
  const paths: string[] = packed.files.map((file: { path: string }) => file.path);
  expect(paths).toContain("dist/index.js");
  expect(paths).toContain("dist/react.d.ts");
  const others = paths.filter((path) => !/^dist\/[a-z]+(\.d\.ts|\.js)$/.test(path));
  expect(others.sort()).toEqual(["README.md", "package.json"]);
  const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  expect(manifest.dependencies).toBeUndefined();
});

test("what was built is ESM that plain Node imports by its name, without React", () => {
  const program = `
    import * as tollgate from "tollgate";
    console.log(Object.keys(tollgate).join());
  `;
  const node = ["--input-type=module", "--eval", program];
  const names = execFileSync(process.execPath, node, { cwd: root, encoding: "utf8" }).trim();
  expect(names.split(",")).toEqual([
    "RATE_LIMIT_EVENT",
    "Tollgate",
    "TollgateError",
    "backoffDelayMs",
    "parseRateLimit",
    "rateLimit",
    "readLimits",
    "withBackoff",
  ]);
  const read = (name: string) => readFileSync(join(root, "dist", name), "utf8");
  for (const name of ["index.js", "client.js", "backoff.js", "middleware.js", "mail.js"]) {
    expect(read(name)).not.toMatch(/from "react/);
  }
  expect(read("react.js")).toMatch(/^"use client"/);
});
