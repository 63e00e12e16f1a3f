/** A tollgate of one test file's own: the real binary, on a free port, in memory. */

import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";

const built = (profile: string) =>
  join(import.meta.dirname, "../../../../target", profile, "tollgate");

function binary(): string {
  const named = process.env.TOLLGATE_BIN;
  const found = named || [built("debug"), built("release")].find((place) => existsSync(place));
  if (!found) throw new Error("no tollgate binary: run `cargo build`, or set TOLLGATE_BIN");
  return found;
}

export interface Server {
  url: string;
  /** Whether this server answers at the path. */
  has: (path: string) => boolean;
  /** The process, to stop it dead or let it rest. */
  child: ChildProcess;
  stop: () => Promise<void>;
}

export async function startServer(environment: Record<string, string> = {}): Promise<Server> {
  const child = spawn(binary(), ["serve", "--store", "memory:", "--listen", "127.0.0.1:0"], {
    env: { ...process.env, TOLLGATE_LOG: "warn", ...environment },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const closed = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  const url = await listening(child);
  const { paths } = (await (await fetch(`${url}/openapi.json`)).json()) as { paths: object };
  return {
    url,
    has: (path) => path in paths,
    child,
    stop: async () => {
      child.kill("SIGKILL");
      await closed;
    },
  };
}

/** The address it prints once it listens. */
async function listening(child: ChildProcess): Promise<string> {
  const said: string[] = [];
  child.stderr?.on("data", (data) => said.push(String(data)));
  if (!child.stdout) throw new Error("no output");
  for await (const line of createInterface(child.stdout)) {
    said.push(line);
    const url = /listens on (http:\/\/\S+?),/.exec(line)?.[1];
    if (url) return url;
  }
  throw new Error(`the server ended before it listened: ${said.join("\n")}`);
}

/** A policy whose one limit counts each user. */
export function perUser(max: number, per: string) {
  return { limits: [{ name: "user", max, per, by: ["user"], algorithm: "sliding" as const }] };
}
