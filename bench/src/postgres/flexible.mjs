// npm's rate-limiter-flexible on PostgreSQL, so many in flight at once, for so long.
// Arguments: folder of its packages, URL, number of keys, in flight, seconds.

import { createRequire } from "node:module";

const [folder, url, keys, inFlight, seconds] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const { RateLimiterPostgres } = require("rate-limiter-flexible");
const { Pool } = require("pg");

const pool = new Pool({ connectionString: url, max: Number(inFlight) });
const limiter = await new Promise((resolve, reject) => {
  const options = { storeClient: pool, tableName: "flexible", points: 1e9, duration: 60 };
  const made = new RateLimiterPostgres(options, (error) => (error ? reject(error) : resolve(made)));
});

const micros = [];
let failed = 0;
let until = Infinity;
async function call() {
  while (performance.now() < until) {
    const asked = performance.now();
    try {
      await limiter.consume(`user-${Math.floor(Math.random() * Number(keys))}`);
    } catch {
      failed += 1;
    }
    micros.push((performance.now() - asked) * 1e3);
  }
}

// Connections are made before the time is taken, as for the others.
await Promise.all(Array.from({ length: Number(inFlight) }, () => pool.query("select 1")));
const started = performance.now();
until = started + Number(seconds) * 1e3;
await Promise.all(Array.from({ length: Number(inFlight) }, call));
const elapsed = performance.now() - started;

micros.sort((a, b) => a - b);
const at = (share) => micros[Math.floor((micros.length - 1) * share)];
const result = {
  requests: micros.length,
  micros: Math.round(elapsed * 1e3),
  p50_micros: at(0.5),
  p99_micros: at(0.99),
  failed,
};
console.log(`RESULT ${JSON.stringify(result)}`);
process.exit(0);
