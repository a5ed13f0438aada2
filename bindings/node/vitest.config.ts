import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: ["test/sandboxes-left.ts"],
    pool: "forks",
    // They wait more than they work.
    maxWorkers: 8,
    hookTimeout: 120_000,
    testTimeout: 60_000,
    reporters: ["default", "./test/reporter.ts"],
  },
});
