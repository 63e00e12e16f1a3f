/** The example page in a real browser, its server and a real tollgate behind it. */

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { type Browser, chromium, type Page } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type Server, startServer } from "./support/server.js";

let server: Server;
let example: ChildProcess;
let browser: Browser;
let page: Page;

function chromiumPath(): string {
  if (process.env.CHROMIUM) return process.env.CHROMIUM;
  const which = (name: string) => {
    try {
      return execFileSync("sh", ["-c", `command -v ${name}`], { encoding: "utf8" }).trim();
    } catch {
      return undefined;
    }
  };
  const found = which("chromium") ?? which("chromium-browser") ?? which("google-chrome");
  if (!found) throw new Error("no browser: install chromium, or set CHROMIUM to one");
  return found;
}

async function startExample(): Promise<string> {
  const program = fileURLToPath(new URL("../example/server.mjs", import.meta.url));
  example = spawn(process.execPath, [program], {
    env: { ...process.env, TOLLGATE_URL: server.url, PORT: "0" },
    stdio: ["ignore", "pipe", "inherit"],
  });
  if (!example.stdout) throw new Error("no output");
  for await (const line of createInterface(example.stdout)) {
    const url = /http:\S+/.exec(line)?.[0];
    if (url) return url;
  }
  throw new Error("the example did not start: is the package built?");
}

beforeAll(async () => {
  server = await startServer();
  const url = await startExample();
  browser = await chromium.launch({ executablePath: chromiumPath(), args: ["--no-sandbox"] });
  page = await browser.newPage();
  await page.goto(url);
});
afterAll(async () => {
  await browser?.close();
  example?.kill();
  await server?.stop();
});

test("pressed too often, the button counts down, comes back, and no press is lost", async () => {
  const faults: string[] = [];
  page.on("pageerror", (error) => faults.push(error.message));
  let loads = 0;
  page.on("load", () => {
    loads += 1;
  });
  await page.evaluate(() => {
    window.addEventListener("rate-limit-error", () => {
      document.body.dataset.told = "yes";
    });
  });
  const button = page.getByRole("button");
  // Everything the button says, as a person sees it.
  await button.evaluate((element) => {
    const said: string[] = [];
    const note = () => said.push(element.textContent ?? "");
    const all = { childList: true, characterData: true, subtree: true };
    new MutationObserver(note).observe(element, all);
    Object.assign(window, { said });
  });

  // Five pass at least; more if this machine is too slow to press five times in eight seconds.
  const limited = page.getByText(/^Send again in \d+ s$/);
  let presses = 0;
  while (!(await limited.isVisible())) {
    expect(presses).toBeLessThan(50);
    presses += 1;
    await button.click();
    await limited.or(page.getByText(`message ${presses} sent`, { exact: true })).waitFor();
    if (presses === 1) await page.getByText("4 left").waitFor();
  }
  expect(presses).toBeGreaterThan(5);
  expect(await button.isDisabled()).toBe(true);
  expect(await page.evaluate(() => document.body.dataset.told)).toBe("yes");
  const screenshots = process.env.SCREENSHOTS;
  if (screenshots) await page.screenshot({ path: `${screenshots}/limited.png` });

  await page.getByText(`message ${presses} sent, after waiting`).waitFor();
  await page.getByRole("button", { name: "Send a message", disabled: false }).waitFor();
  if (screenshots) await page.screenshot({ path: `${screenshots}/back.png` });

  const said = await page.evaluate(() => (window as unknown as { said: string[] }).said);
  const seconds = said.flatMap((text) => /again in (\d+) s/.exec(text)?.[1] ?? []).map(Number);
  // A busy machine may skip a second, never show one twice or go back.
  const falling = [...new Set(seconds)].sort((one, other) => other - one);
  expect(seconds).toEqual(falling);
  expect(seconds.length).toBeGreaterThanOrEqual(2);
  expect(Math.max(...seconds)).toBeLessThanOrEqual(8);
  expect(said.at(-1)).toBe("Send a message");

  await button.click();
  await page.getByText(new RegExp(`^message ${presses + 1} sent`)).waitFor();
  expect(loads).toBe(0);
  expect(faults).toEqual([]);
});
