/** Prints one line for each test, which `cargo xtask test` reads. */

import type { Reporter, TestCase } from "vitest/node";

const WORDS = { passed: "PASSED", failed: "FAILED", skipped: "SKIPPED", pending: "FAILED" };

export default class implements Reporter {
  onTestCaseResult(test: TestCase): void {
    const word = WORDS[test.result().state];
    const milliseconds = Math.round(test.diagnostic()?.duration ?? 0);
    console.log(`${word} ${milliseconds} bindings/node/${test.module.relativeModuleId}::${test.fullName}`);
  }
}
