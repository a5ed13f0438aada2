/** The behaviours that Deep Agents' own tests require (`@langchain/sandbox-standard-tests`), and further ones. */

import { adaptSandboxProtocol, BaseSandbox, isSandboxBackend } from "deepagents";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { KubernetesSandbox } from "../dist/esm/index.js";

/** How a sandbox is made, of which these behaviours are tested. */
export interface Subject {
  create: (options?: { initialFiles?: Record<string, string> }) => Promise<KubernetesSandbox>;
  uninitialized: () => KubernetesSandbox;
}

const text = (bytes: Uint8Array | null | undefined) => new TextDecoder().decode(bytes ?? new Uint8Array());
const bytes = (content: string) => new TextEncoder().encode(content);

export function behaviours(name: string, subject: Subject): void {
  describe(name, () => {
    let sandbox: KubernetesSandbox;
    let backend: ReturnType<typeof adaptSandboxProtocol>;
    let directories = 0;

    beforeAll(async () => {
      sandbox = await subject.create();
      backend = adaptSandboxProtocol(sandbox);
    });

    afterAll(async () => sandbox.close());

    /** A directory of the test's own. */
    async function directory(files: Record<string, string> = {}): Promise<string> {
      directories += 1;
      const path = `/tmp/test-${directories}`;
      await sandbox.execute(`mkdir -p ${path}`);
      const uploads = Object.entries(files).map(([file, content]): [string, Uint8Array] => [
        `${path}/${file}`,
        bytes(content),
      ]);
      for (const { error } of await sandbox.uploadFiles(uploads)) expect(error).toBeNull();
      return path;
    }

    describe("lifecycle", () => {
      test("a created sandbox runs and is a backend with an id", () => {
        expect(sandbox.isRunning).toBe(true);
        expect(sandbox.id).not.toBe("");
        expect(isSandboxBackend(sandbox)).toBe(true);
        expect(sandbox).toBeInstanceOf(BaseSandbox);
      });

      test("a closed sandbox does not run and can be closed again", async () => {
        const other = await subject.create();
        await other.close();
        expect(other.isRunning).toBe(false);
        await other.close();
        expect((await other.execute("true")).exitCode).not.toBe(0);
      });

      test("a sandbox can be made in two steps", async () => {
        const other = subject.uninitialized();
        expect(other.isRunning).toBe(false);
        expect(other.id).not.toBe("");
        await expect(other.execute("true")).rejects.toMatchObject({ code: "NOT_INITIALIZED" });
        await other.initialize();
        expect(other.isRunning).toBe(true);
        await expect(other.initialize()).rejects.toMatchObject({ code: "ALREADY_INITIALIZED" });
        await other.close();
      });
    });

    describe("commands", () => {
      test("output and exit code are the command's", async () => {
        const result = await backend.execute('echo "hello"');
        expect(result).toEqual({ output: "hello\n", exitCode: 0, truncated: false });
        expect((await backend.execute("exit 42")).exitCode).toBe(42);
      });

      test("several commands run in one shell", async () => {
        const result = await backend.execute("cd /tmp && echo one | tr o 0 && echo two >&2");
        expect(result.output).toBe("0ne\ntwo\n");
      });

      test("variables are expanded by the shell", async () => {
        expect((await backend.execute("export MY_VAR=value && echo $MY_VAR")).output).toBe("value\n");
      });

      test("an unknown command fails with an exit code", async () => {
        const result = await backend.execute("nonexistent-command-12345");
        expect(result.exitCode).toBe(127);
      });

      test("emoji arrive whole whatever the size of the output", async () => {
        const result = await backend.execute("i=0; while [ $i -lt 3000 ]; do printf '😀é'; i=$((i+1)); done");
        expect(result.output).toBe("😀é".repeat(3000));
      });

      test("a timeout kills the command and reports it", async () => {
        const result = await sandbox.execute("echo before; sleep 60", { timeout: 1 });
        expect(result).toEqual({ output: "before\nCommand timed out after 1s", exitCode: 124, truncated: false });
      });

      test("environment and directory are the call's own", async () => {
        const result = await sandbox.execute("echo $ANSWER; pwd", { env: { ANSWER: "42" }, cwd: "/tmp" });
        expect(result.output).toBe("42\n/tmp\n");
      });

      test("too much output is cut and reported", async () => {
        const result = await sandbox.execute("yes | head -c 100000", { maxOutputBytes: 1000 });
        expect(result.truncated).toBe(true);
        expect(result.exitCode).toBe(0);
        expect(result.output.length).toBeLessThanOrEqual(1000);
      });

      test("a negative timeout is refused", async () => {
        await expect(sandbox.execute("true", { timeout: -1 })).rejects.toThrow(TypeError);
      });

      test("an aborted signal kills the command and all that it started", async () => {
        const path = await directory();
        const abort = new AbortController();
        const command = `echo partial; (sleep 2; touch ${path}/late) & echo $! > ${path}/pid; wait`;
        const running = sandbox.execute(command, { signal: abort.signal });
        while (!(await sandbox.downloadFiles([`${path}/pid`]))[0]?.content?.length) await sleep(20);
        abort.abort();
        expect(await running).toEqual({ output: "partial\nCommand cancelled", exitCode: 124, truncated: false });
        await sleep(2500);
        expect((await sandbox.ls(path)).files?.map((file) => file.path)).toEqual([`${path}/pid`]);
      });

      test("a signal that is aborted already keeps the command from running", async () => {
        const path = await directory();
        const result = await sandbox.execute(`touch ${path}/ran`, { signal: AbortSignal.abort() });
        expect(result.exitCode).toBe(124);
        expect((await sandbox.ls(path)).files).toEqual([]);
      });

      test("output can be received while it is written", async () => {
        const path = await directory();
        const parts: string[] = [];
        const received = ({ text }: { text: string }) => {
          parts.push(text);
          void sandbox.write(`${path}/received`, "");
        };
        const command = `echo one; until [ -e ${path}/received ]; do sleep 0.1; done; echo two >&2; exit 3`;
        const result = await sandbox.execute(command, { onOutput: received });
        expect(parts).toEqual(["one\n", "two\n"]);
        expect(result).toEqual({ output: "one\ntwo\n", exitCode: 3, truncated: false });
      });

      test("a timeout is reported to a caller that receives output, too", async () => {
        const result = await sandbox.execute("echo before; sleep 60", { timeout: 1, onOutput: () => {} });
        expect(result).toEqual({ output: "before\nCommand timed out after 1s", exitCode: 124, truncated: false });
      });

      test("a cancelled command whose output is received has it in its result, too", async () => {
        const abort = new AbortController();
        const onOutput = () => abort.abort();
        const result = await sandbox.execute("echo partial; sleep 60", { signal: abort.signal, onOutput });
        expect(result).toEqual({ output: "partial\nCommand cancelled", exitCode: 124, truncated: false });
      });

      test("64 parallel calls each get their own answer", async () => {
        const results = await Promise.all(Array.from({ length: 64 }, (_, i) => backend.execute(`echo ${i}`)));
        expect(results.map(({ output }) => output)).toEqual(Array.from({ length: 64 }, (_, i) => `${i}\n`));
      });
    });

    describe("streams and processes", () => {
      test("a stream yields output and has the exit code in the end", async () => {
        const stream = sandbox.stream("echo one; echo two >&2; exit 5");
        const chunks: { text: string; stderr: boolean }[] = [];
        for await (const { text, stderr } of stream) chunks.push({ text, stderr });
        expect(
          chunks
            .filter(({ stderr }) => !stderr)
            .map(({ text }) => text)
            .join(""),
        ).toBe("one\n");
        expect(
          chunks
            .filter(({ stderr }) => stderr)
            .map(({ text }) => text)
            .join(""),
        ).toBe("two\n");
        expect(stream.exitCode).toBe(5);
      });

      test("leaving a stream kills its command", async () => {
        const path = await directory();
        for await (const chunk of sandbox.stream(`echo begun; sleep 2; touch ${path}/late`)) {
          expect(chunk.text).toBe("begun\n");
          break;
        }
        await sleep(2500);
        expect((await sandbox.ls(path)).files).toEqual([]);
      });

      test("a background process takes input and is found again", async () => {
        const started = await sandbox.start("cat", { stdin: true });
        await started.write("hello\n");
        await started.closeStdin();
        expect(await started.wait()).toMatchObject({ exitCode: 0, timedOut: false });
        const info = (await sandbox.processes()).find(({ process }) => process.name === started.name);
        expect(info).toMatchObject({ command: "cat", terminal: false, outputEnd: 6, exit: { exitCode: 0 } });
        let output = "";
        for await (const { text } of info?.process.attach() ?? []) output += text;
        expect(output).toBe("hello\n");
      });

      test("a process can be killed", async () => {
        const started = await sandbox.start("sleep 60");
        await started.kill();
        expect((await started.wait()).exitCode).toBe(137);
      });

      test("a terminal has the size that it is given", async () => {
        const started = await sandbox.start("stty size; read line; stty size", { terminal: { rows: 20, columns: 60 } });
        const output = started.attach()[Symbol.asyncIterator]();
        expect((await output.next()).value?.text).toContain("20 60");
        await started.resize(30, 90);
        await started.write("\n");
        let rest = "";
        for (let next = await output.next(); !next.done; next = await output.next()) rest += next.value.text;
        expect(rest).toContain("30 90");
      });
    });

    describe("transfers", () => {
      test("results echo their paths in order and errors are null", async () => {
        const path = await directory();
        const uploaded = await backend.uploadFiles?.([
          [`${path}/a.txt`, bytes("a")],
          [`${path}/deep/er/b.txt`, bytes("b")],
          [`${path}/c.txt`, bytes("c")],
        ]);
        expect(uploaded).toEqual(
          ["a.txt", "deep/er/b.txt", "c.txt"].map((file) => ({ path: `${path}/${file}`, error: null })),
        );
        const downloaded = await backend.downloadFiles?.([`${path}/a.txt`, `${path}/none.txt`, `${path}/c.txt`]);
        expect(downloaded?.map(({ content, error }) => [content && text(content), error])).toEqual([
          ["a", null],
          [null, "file_not_found"],
          ["c", null],
        ]);
      });

      test("every failure has the code of its reason", async () => {
        const path = await directory({ "file.txt": "" });
        const errors = async (paths: string[]) => (await sandbox.downloadFiles(paths)).map(({ error }) => error);
        expect(await errors([path, `${path}/none`, `${path}/file.txt/below`])).toEqual([
          "is_directory",
          "file_not_found",
          "invalid_path",
        ]);
        const uploaded = await sandbox.uploadFiles([
          [path, bytes("x")],
          [`${path}/ok.txt`, bytes("x")],
        ]);
        expect(uploaded.map(({ error }) => error)).toEqual(["is_directory", null]);
      });

      test("all byte values survive a round trip", async () => {
        const path = await directory();
        const content = Uint8Array.from({ length: 65536 }, (_, i) => (i * 31 + (i >> 8)) % 256);
        await sandbox.uploadFiles([[`${path}/all`, content]]);
        expect((await sandbox.downloadFiles([`${path}/all`]))[0]?.content).toEqual(content);
      });

      test("a large content is written at once and read whole", { timeout: 180_000 }, async () => {
        const path = `${await directory()}/large`;
        const content = Uint8Array.from({ length: 8 << 20 }, (_, i) => i % 251);
        await sandbox.instance.write(path, content);
        expect(Buffer.compare(await sandbox.instance.read(path), content)).toBe(0);
        const uploaded = await sandbox.uploadFiles([[path, content.subarray(1)]]);
        expect(uploaded).toEqual([{ path, error: null }]);
        const read = (await sandbox.downloadFiles([path]))[0]?.content ?? new Uint8Array();
        expect(Buffer.compare(read, content.subarray(1))).toBe(0);
      });

      test("a stream of 100 MiB goes in and out whole", { timeout: 180_000 }, async () => {
        const path = await directory();
        const block = Buffer.alloc(1 << 20, 7);
        async function* blocks() {
          for (let i = 0; i < 100; i += 1) yield block;
        }
        await sandbox.uploadFile(`${path}/large`, blocks());
        let size = 0;
        for await (const chunk of await sandbox.downloadStream(`${path}/large`)) size += (chunk as Buffer).length;
        expect(size).toBe(100 << 20);
        await sandbox.delete(`${path}/large`);
      });
    });

    describe("write", () => {
      test.each([
        ["shell syntax", "$VAR `id` $(id) \\ \t 'x' \"y\"\\"],
        ["unicode", "😀 漢字 العربية\n"],
        ["nothing", ""],
        ["newlines only", "\n\n\n\n\n"],
        ["a thousand lines", Array.from({ length: 1000 }, (_, i) => `line ${i}`).join("\n")],
      ])("content of %s is written as it is", async (_, content) => {
        const path = `${await directory()}/four/levels/deep/a file.txt`;
        expect(await backend.write(path, content)).toMatchObject({ path, filesUpdate: null });
        expect((await backend.execute(`cat '${path}'`)).output).toBe(content);
      });

      test("a file is replaced, and its path is echoed with its slashes", async () => {
        const path = `/${await directory()}//file.txt`;
        await backend.write(path, "one");
        const result = await backend.write(path, "two");
        expect(result.error).toBeUndefined();
        expect(result.path).toBe(path);
        expect((await backend.execute(`cat ${path}`)).output).toBe("two");
      });

      test("a binary file is written from base64 and read as bytes", async () => {
        const path = `${await directory()}/pixel.png`;
        await backend.write(path, Buffer.from([137, 80, 0, 255]).toString("base64"));
        expect(await backend.read(path)).toEqual({
          content: Uint8Array.from([137, 80, 0, 255]),
          mimeType: "image/png",
        });
      });
    });

    describe("read", () => {
      test("lines are raw, with their numbers beside them", async () => {
        const path = await directory({ "f.py": "def f():\n    return 1\n" });
        expect(await backend.read(`${path}/f.py`)).toEqual({
          content: "def f():\n    return 1",
          mimeType: "text/plain",
          totalLines: 2,
          startLine: 1,
          endLine: 2,
        });
      });

      test("offset and limit choose lines, and the next offset follows", async () => {
        const lines = Array.from({ length: 1000 }, (_, i) => `line ${i + 1}`).join("\n");
        const path = await directory({ "many.txt": lines });
        const page = await backend.read(`${path}/many.txt`, 10, 2);
        expect(page).toMatchObject({ startLine: 11, endLine: 12, nextOffset: 12 });
        expect(page.content).toContain("line 11\nline 12");
        expect(page.content).not.toContain("line 13");
        const last = await backend.read(`${path}/many.txt`, 990, 100);
        expect(last).toMatchObject({ startLine: 991, endLine: 1000, totalLines: 1000 });
        expect(last.nextOffset).toBeUndefined();
      });

      test("no lines are defined content", async () => {
        const path = await directory({ "f.txt": "one\ntwo\n" });
        expect((await backend.read(`${path}/f.txt`, 0, 0)).content).toBe("");
        expect((await backend.read(`${path}/f.txt`, 99, 10)).content).toBe("");
      });

      test("an empty file has the sentence of Deep Agents' tool", async () => {
        const path = await directory({ "empty.txt": "" });
        const { content, error } = await backend.read(`${path}/empty.txt`);
        expect(error).toBeUndefined();
        expect(content).toBe("System reminder: File exists but has empty contents");
      });

      test("each failure has its own sentence", async () => {
        const path = await directory();
        expect((await backend.read(`${path}/none`)).error).toBe(`File '${path}/none' not found`);
        expect((await backend.read(path)).error).toBe(`File '${path}' is a directory`);
      });

      test("long lines are whole", async () => {
        const path = await directory({ "long.txt": `${"x".repeat(3000)}\n` });
        expect((await backend.read(`${path}/long.txt`)).content).toBe("x".repeat(3000));
      });

      test("a raw file has its content and times", async () => {
        const path = await directory({ "f.json": "{}" });
        const { data } = await backend.readRaw(`${path}/f.json`);
        expect(data).toMatchObject({ content: "{}", mimeType: "application/json" });
        expect(Date.now() - Date.parse(data?.modified_at ?? "")).toBeLessThan(3_600_000);
        expect((await backend.readRaw(`${path}/none`)).error).toContain("not found");
      });
    });

    describe("edit", () => {
      const cases: [string, string, string, string, boolean, number, string][] = [
        ["once", "a b c", "b", "x", false, 1, "a x c"],
        ["everywhere", "a a a", "a", "b", true, 3, "b b b"],
        ["several lines", "1\n2\n3\n", "1\n2", "one\ntwo", false, 1, "one\ntwo\n3\n"],
        ["deletion", "keep drop keep", " drop", "", false, 1, "keep keep"],
        ["text that looks like a pattern", "[a-z]* $100.00", "[a-z]*", "$& $1", false, 1, "$& $1 $100.00"],
        ["emoji", "😀 😁", "😁", "🎉", false, 1, "😀 🎉"],
        ["whitespace", "\ta  \n", "\ta  ", "  a\t", false, 1, "  a\t\n"],
        ["long text", "x".repeat(1000), "x".repeat(1000), "y".repeat(1000), false, 1, "y".repeat(1000)],
        ["identical text", "same", "same", "same", false, 1, "same"],
      ];
      test.each(cases)("%s is replaced", async (_, before, old, replacement, all, occurrences, after) => {
        const path = `${await directory({ "f.txt": before })}/f.txt`;
        const result = await backend.edit(path, old, replacement, all);
        expect(result).toMatchObject({ path, occurrences, filesUpdate: null });
        expect(result.error).toBeUndefined();
        expect((await backend.execute(`cat ${path}`)).output).toBe(after);
      });

      test("failures leave the file as it is", async () => {
        const path = `${await directory({ "f.txt": "a a" })}/f.txt`;
        expect((await backend.edit(path, "a", "b")).error?.toLowerCase()).toContain("multiple");
        expect((await backend.edit(path, "z", "b")).error).toContain("not found");
        expect((await backend.edit(`${path}.none`, "a", "b")).error).toContain("not found");
        expect((await backend.execute(`cat ${path}`)).output).toBe("a a");
      });

      test("parallel edits of one file lose none", async () => {
        const words = Array.from({ length: 16 }, (_, i) => `<${i}>`);
        const path = `${await directory({ "f.txt": words.join(" ") })}/f.txt`;
        await Promise.all(words.map((word, i) => backend.edit(path, word, `(${i})`)));
        expect((await backend.execute(`cat ${path}`)).output).toBe(words.map((_, i) => `(${i})`).join(" "));
      });
    });

    describe("delete", () => {
      test("files and directories are removed", async () => {
        const path = await directory({ "d/f.txt": "x", "d/e/g.txt": "y" });
        expect(await backend.delete?.(`${path}/d`)).toMatchObject({ path: `${path}/d`, filesUpdate: null });
        expect((await backend.ls(path)).files).toEqual([]);
        expect((await backend.delete?.(`${path}/d`))?.error).toContain("not found");
      });
    });

    describe("ls", () => {
      test("entries have absolute paths and kinds", async () => {
        const path = await directory({
          "a b.txt": "12345",
          ".hidden": "",
          "file(1).txt": "",
          "ünï.txt": "",
          "sub/f": "",
        });
        for (const asked of [path, `${path}/`]) {
          const { files, error } = await backend.ls(asked);
          expect(error).toBeUndefined();
          expect(files?.map((file) => [file.path.replace(/\/$/, ""), file.is_dir]).sort()).toEqual(
            [
              [`${path}/.hidden`, false],
              [`${path}/a b.txt`, false],
              [`${path}/file(1).txt`, false],
              [`${path}/sub`, true],
              [`${path}/ünï.txt`, false],
            ].sort(),
          );
        }
        const [entry] = (await backend.ls(path)).files?.filter((file) => file.path.endsWith("a b.txt")) ?? [];
        expect(entry?.size).toBe(5);
        expect(Date.parse(entry?.modified_at ?? "")).not.toBeNaN();
      });

      test("an empty or missing directory has no files, and a file is no directory", async () => {
        const path = await directory({ "f.txt": "" });
        expect(await backend.ls(`${path}/none`)).toEqual({ files: [], error: undefined });
        await backend.execute(`mkdir ${path}/empty`);
        expect((await backend.ls(`${path}/empty`)).files).toEqual([]);
        expect((await backend.ls(`${path}/f.txt`)).error).toContain("not a directory");
      });

      test("fifty files are listed", async () => {
        const path = await directory();
        await backend.execute(`cd ${path} && i=0 && while [ $i -lt 50 ]; do : > f$i; i=$((i+1)); done`);
        expect((await backend.ls(path)).files).toHaveLength(50);
      });
    });

    describe("grep", () => {
      test("lines are found literally, in order, with their numbers", async () => {
        const path = await directory({ "f.py": "hit\nno\nhit two\nno\nhit\n", "g.txt": "hit\n" });
        const found = await backend.grep("hit", path, "*.py");
        expect(found.error).toBeUndefined();
        expect(found.matches?.map(({ path: file, line, text }) => [file, line, text])).toEqual([
          [`${path}/f.py`, 1, "hit"],
          [`${path}/f.py`, 3, "hit two"],
          [`${path}/f.py`, 5, "hit"],
        ]);
        expect((await backend.grep("Hit", path)).matches).toEqual([]);
      });

      test.each(["$100", "[a-z]*", "漢字", "a:b"])("%s is no pattern", async (literal) => {
        const path = await directory({ "f.txt": `x ${literal} y\n` });
        expect((await backend.grep(literal, path)).matches).toHaveLength(1);
      });

      test("paths with colons are found, and deep ones", async () => {
        const path = await directory({ "a:b/c.txt": "needle\n", "deep/er/f.txt": `${"x\n".repeat(49)}needle\n` });
        const { matches } = await backend.grep("needle", path);
        expect(matches?.map((match) => [match.path, match.line])).toEqual([
          [`${path}/a:b/c.txt`, 1],
          [`${path}/deep/er/f.txt`, 50],
        ]);
      });

      test("a directory without files has no matches, and a missing one is an error", async () => {
        const path = await directory();
        expect((await backend.grep("x", path)).matches).toEqual([]);
        expect((await backend.grep("x", `${path}/none`)).error).toContain("not found");
      });

      test("the count is limited and that is reported", async () => {
        const path = await directory({ "f.txt": "x\n".repeat(100) });
        const found = await backend.grep("x", path, null, 10);
        expect(found.matches).toHaveLength(10);
        expect(found.truncated).toBe(true);
      });
    });

    describe("glob", () => {
      const tree = { "file1.txt": "", "file2.txt": "", "file3.txt": "", "a.py": "", ".hidden": "", "sub/deep.txt": "" };
      test.each([
        ["file1.txt", ["file1.txt"]],
        ["*.py", ["a.py"]],
        ["file[1-2].txt", ["file1.txt", "file2.txt"]],
        ["file?.txt", ["file1.txt", "file2.txt", "file3.txt"]],
        ["{a.py,file3.txt}", ["a.py", "file3.txt"]],
        ["**/deep.txt", ["sub/deep.txt"]],
        ["**/*.txt", ["file1.txt", "file2.txt", "file3.txt", "sub/deep.txt"]],
        [".*", [".hidden"]],
        ["none*", []],
      ])("%s finds paths relative to the directory", async (pattern, expected) => {
        const path = await directory(tree);
        const found = await backend.glob(pattern, path);
        expect(found.error).toBeUndefined();
        expect(found.files?.map((file) => file.path).sort()).toEqual(expected);
        expect(found.files?.every((file) => file.is_dir === false)).toBe(true);
      });

      test("directories are found by a pattern of one level", async () => {
        const path = await directory({ "one/x": "", "two/y": "", "f.txt": "" });
        const { files } = await backend.glob("*", path);
        expect(files?.map((file) => [file.path, file.is_dir]).sort()).toEqual([
          ["f.txt", false],
          ["one", true],
          ["two", true],
        ]);
      });

      test("an absolute pattern is searched where it points", async () => {
        const path = await directory(tree);
        expect((await backend.glob(`${path}/*.py`, path)).files?.map((file) => file.path)).toEqual(["a.py"]);
        expect((await backend.glob(`${path}/*.py`, "/etc")).files?.map((file) => file.path)).toEqual([`${path}/a.py`]);
      });
    });

    describe("initial files", () => {
      test("they are there when the sandbox is", async () => {
        const initialFiles = { "/tmp/script.sh": "echo from script", "/tmp/nested/dir/f.txt": "nested" };
        const other = await subject.create({ initialFiles });
        expect((await other.execute("sh /tmp/script.sh; cat /tmp/nested/dir/f.txt")).output).toBe(
          "from script\nnested",
        );
        await other.close();
        const none = await subject.create({ initialFiles: {} });
        await none.close();
      });
    });

    describe("tools together", () => {
      test("write, read, edit and read again", async () => {
        const path = `${await directory()}/f.txt`;
        await backend.write(path, "one two\n");
        expect((await backend.read(path)).content).toBe("one two");
        await backend.edit(path, "two", "three");
        expect((await backend.read(path)).content).toBe("one three");
      });
    });
  });
}

export function sleep(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
