// Loads the addon of this platform: the one beside this file, or that of the platform's package.
"use strict";

const { existsSync } = require("node:fs");
const { join } = require("node:path");

function isMusl() {
  const { report } = process;
  if (report === undefined) return false;
  const { excludeNetwork } = report;
  // Otherwise a report contains the host names of all connections, whose lookup can take seconds.
  report.excludeNetwork = true;
  const { header } = report.getReport();
  report.excludeNetwork = excludeNetwork;
  return header.glibcVersionRuntime === undefined;
}

function platform() {
  const { platform, arch } = process;
  if (platform === "linux") return `linux-${arch}-${isMusl() ? "musl" : "gnu"}`;
  return platform === "win32" ? `win32-${arch}-msvc` : `${platform}-${arch}`;
}

function load() {
  if (process.env.NAPI_RS_NATIVE_LIBRARY_PATH) return require(process.env.NAPI_RS_NATIVE_LIBRARY_PATH);
  const name = platform();
  const beside = join(__dirname, `sandpod.${name}.node`);
  if (existsSync(beside)) return require(beside);
  try {
    return require(`@sandpod/${name}`);
  } catch (cause) {
    const message =
      `sandpod has no native addon for ${name}. Install the package again on this platform: a lock file that was ` +
      "made on another platform may leave it out.";
    throw new Error(message, { cause });
  }
}

module.exports = Object.assign({}, load(), { file: __filename });
