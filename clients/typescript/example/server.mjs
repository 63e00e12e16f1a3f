/**
 * Serves the example page and one route behind the middleware. Needs a running tollgate:
 *
 *   tollgate serve --store memory: &
 *   npm run build && npm run example
 *
 * Settings: TOLLGATE_URL (http://127.0.0.1:8080), TOLLGATE_TOKEN, PORT (3000; 0 is any).
 */

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { rateLimit, Tollgate } from "tollgate";

const { TOLLGATE_URL = "http://127.0.0.1:8080", TOLLGATE_TOKEN, PORT = "3000" } = process.env;
const here = (/** @type {string} */ name) => fileURLToPath(new URL(name, import.meta.url));

const gate = new Tollgate({ url: TOLLGATE_URL, token: TOLLGATE_TOKEN });
await gate.policies.put("example", {
  limits: [{ name: "visitor", max: 5, per: "8s", algorithm: "sliding", by: ["ip"], private: true }],
});

const html = await readFile(here("index.html"), "utf8");
// React comes as CommonJS, which browsers do not read: bundled in memory, once.
const { outputFiles } = await build({
  entryPoints: [here("page.tsx")],
  bundle: true,
  format: "esm",
  jsx: "automatic",
  define: { "process.env.NODE_ENV": '"production"' },
  write: false,
});
const script = outputFiles[0]?.text ?? "";

/** @typedef {{ address: string }} Connection */

/** @type {import("tollgate").RateLimitOptions<[Connection]>} */
const options = {
  gate,
  policy: "example",
  // Whoever is at the other end of the connection: no header can claim to be somebody else.
  subject: (_request, connection) => ({ ip: connection.address }),
};

let sent = 0;
const send = rateLimit(options)(async () => {
  sent += 1;
  return Response.json({ sent });
});

/** @type {(request: Request, connection: Connection) => Response | Promise<Response>} */
function route(request, connection) {
  const { pathname } = new URL(request.url);
  if (request.method === "POST" && pathname === "/api/send") return send(request, connection);
  if (pathname === "/") return new Response(html, { headers: { "Content-Type": "text/html" } });
  if (pathname === "/page.js") {
    return new Response(script, { headers: { "Content-Type": "text/javascript" } });
  }
  return new Response("nothing here", { status: 404 });
}

const server = createServer(async (incoming, outgoing) => {
  try {
    const request = new Request(new URL(incoming.url ?? "/", "http://localhost"), {
      method: incoming.method,
    });
    const address = incoming.socket.remoteAddress ?? "unknown";
    const response = await route(request, { address });
    outgoing.writeHead(response.status, Object.fromEntries(response.headers));
    outgoing.end(Buffer.from(await response.arrayBuffer()));
  } catch (error) {
    console.error(error);
    outgoing.writeHead(500).end();
  }
});
server.listen(Number(PORT), "127.0.0.1", () => {
  const address = server.address();
  const port = typeof address === "object" ? address?.port : PORT;
  console.log(`the example is at http://127.0.0.1:${port}/`);
});
