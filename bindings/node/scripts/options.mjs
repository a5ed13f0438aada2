// Writes ts/src/generated-options.ts and OPTIONS.md from docs/configuration.md, which is made from the library's
// table of options. With --check it writes nothing and fails if they are stale.
import { readFileSync, writeFileSync } from "node:fs";

const TYPES = {
  text: "string",
  number: "number",
  "true or false": "boolean",
  "list of texts": "string[]",
  "map of texts": "Record<string, string>",
  object: "Record<string, unknown>",
  "list of objects": "Record<string, unknown>[]",
};
/** Options that the document of @bitkaio/langchain-kubernetes names otherwise, or whose defaults differ there. */
const OTHERWISE = {
  api_url: { name: "routerUrl" },
  kubeconfig: { name: "kubeconfigPath" },
  startup_timeout_seconds: {
    name: "startupTimeoutMs",
    default: "120000",
    doc: "Milliseconds that a sandbox may take to start.",
  },
  default_exec_timeout: {
    name: "executeTimeoutMs",
    default: "300000",
    doc: "Milliseconds that a command may take if its call has no `timeout`; 0: no limit.",
  },
  namespace: { default: '`"deepagents-sandboxes"`' },
};

const here = (path) => new URL(path, import.meta.url);
const camel = (name) => name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());
const inCamel = (text, names) =>
  text.replace(/`([a-z]+(?:_[a-z]+)+)`/g, (all, name) => (names.has(name) ? `\`${camel(name)}\`` : all));

function options() {
  const page = readFileSync(here("../../../docs/configuration.md"), "utf8");
  const rows = [...page.matchAll(/^\| `(\w+)` \| ([\w ]+) \| (.+?) \| (.+) \|$/gm)];
  const names = new Set(rows.map(([, name]) => name));
  return rows.map(([, name, form, fallback, doc]) => {
    const other = OTHERWISE[name] ?? {};
    const type = TYPES[form];
    if (type === undefined) throw new Error(`the option ${name} has an unknown form: ${form}`);
    return {
      name: other.name ?? camel(name),
      type: fallback === "none" ? `${type} | null` : type,
      fallback: other.default ?? fallback,
      doc: inCamel(other.doc ?? doc, names),
    };
  });
}

function typescript(all) {
  const fields = all.map(({ name, type, fallback, doc }) => {
    const text = `${doc} Default: ${fallback === "none" ? "none" : fallback}.`;
    return `  /** ${text.replaceAll("*/", "* /")} */\n  ${name}?: ${type};`;
  });
  return `// Made by scripts/options.mjs from docs/configuration.md. Do not edit.\n\n/** The options that the library's table has. */\nexport interface GeneratedOptions {\n${fields.join("\n")}\n}\n`;
}

function table(all) {
  const rows = all.map(
    ({ name, type, fallback, doc }) =>
      `| \`${name}\` | \`${type.replaceAll("|", "\\|")}\` | ${fallback.replaceAll("|", "\\|")} | ${doc} |`,
  );
  return ["| Option | Type | Default | Description |", "| --- | --- | --- | --- |", ...rows].join("\n");
}

const all = options();
const wanted = {
  "../ts/src/generated-options.ts": typescript(all),
  "../OPTIONS.md": `# Options\n\nMade by scripts/options.mjs from docs/configuration.md. Do not edit.\n\n${table(all)}\n`,
};
for (const [path, text] of Object.entries(wanted)) {
  if (!process.argv.includes("--check")) writeFileSync(here(path), text);
  else if (readFileSync(here(path), "utf8") !== text) {
    console.error(`bindings/node/${path.slice(3)} is stale: run \`npm run options\` in bindings/node`);
    process.exitCode = 1;
  }
}
