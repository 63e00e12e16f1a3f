import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

const source = (name: string) => fileURLToPath(new URL(`src/${name}`, import.meta.url));

export default defineConfig({
  resolve: {
    alias: [
      { find: /^tollgate$/, replacement: source("index.ts") },
      { find: /^tollgate\/react$/, replacement: source("react.tsx") },
    ],
  },
  test: {
    include: ["tests/**/*.test.{ts,tsx}"],
    // Another build may have both cores.
    testTimeout: 60_000,
    hookTimeout: 60_000,
    maxWorkers: 2,
  },
});
