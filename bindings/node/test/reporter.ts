/** Prints one line for each test, which `cargo xtask test` reads. */

import type { Reporter, TestCase } from "vitest/node";

const WORDS = { passed: "PASSED", failed: "FAILED", skipped: "SKIPPED", pending: "FAILED" };

export default class implements Reporter {
  onTestCaseResult(test: TestCase): void {
    const word = WORDS[test.result().state];
    console.log(`${word} bindings/node/${test.module.relativeModuleId}::${test.fullName}`);
  }
}
