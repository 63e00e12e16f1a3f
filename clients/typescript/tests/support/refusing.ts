/** A service that refuses every other call, for a second. */

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

export async function startRefusing() {
  let calls = 0;
  const service = createServer((_, response) => {
    calls += 1;
    response.writeHead(calls % 2 ? 429 : 200, {
      "Retry-After": "1",
      "X-RateLimit-Remaining": calls % 2 ? "0" : "3",
    });
    response.end("{}");
  });
  await new Promise<void>((resolve) => service.listen(0, "127.0.0.1", resolve));
  const { port } = service.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}/categorize`, close: () => void service.close() };
}
