/** The examples, in local mode. */

import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { describe, expect, test } from "vitest";
import * as withExpress from "../examples/express-app.js";
import * as withHono from "../examples/hono-app.js";
import { ObedientModel } from "./scripted.js";

const body = (message: string) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify({ message }),
});

describe("the examples", () => {
  test("an Express server keeps the files of a conversation", async () => {
    const { app, manager } = await withExpress.makeApp(new ObedientModel(), { mode: "local" });
    const server = app.listen(0);
    await once(server, "listening");
    const url = `http://localhost:${(server.address() as AddressInfo).port}/chat/express-${process.pid}`;
    const chat = async (message: string) =>
      ((await (await fetch(url, body(message))).json()) as { reply: string }).reply;
    await chat("echo text > kept");
    expect(await chat("cat kept")).toContain("text");
    server.close();
    await manager.shutdown();
  });

  test("a Hono server streams the steps of an agent", async () => {
    const { app, manager } = await withHono.makeApp(new ObedientModel(), { mode: "local" });
    const answer = await app.request(`/chat/hono-${process.pid}`, body("echo text"));
    const steps = await answer.text();
    expect(steps).toContain("model");
    expect(steps).toContain("tools");
    await manager.shutdown();
  });
});
