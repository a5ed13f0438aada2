/** An HTTP proxy between this process and a test cluster, whose connections can be cut. */

import { once } from "node:events";
import { createServer } from "node:http";
import { type AddressInfo, connect, type Socket } from "node:net";

export class CuttingProxy {
  readonly #server = createServer();
  readonly #sockets = new Set<Socket>();

  constructor() {
    this.#server.on("connect", (request, client: Socket, head) => {
      const target = new URL(`http://${request.url}`);
      const upstream = connect(Number(target.port), target.hostname, () => {
        client.write("HTTP/1.1 200 Connection established\r\n\r\n");
        upstream.write(head);
        client.pipe(upstream).pipe(client);
      });
      for (const [one, other] of [
        [client, upstream],
        [upstream, client],
      ] as const) {
        this.#sockets.add(one);
        one.on("error", () => {});
        one.on("close", () => {
          this.#sockets.delete(one);
          other.destroy();
        });
      }
    });
  }

  async start(): Promise<string> {
    this.#server.listen(0, "127.0.0.1");
    await once(this.#server, "listening");
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Resets every connection and returns their number. New ones are accepted. */
  cut(): number {
    const sockets = [...this.#sockets];
    for (const socket of sockets) socket.resetAndDestroy();
    return sockets.length / 2;
  }

  stop(): void {
    this.#server.close();
    this.cut();
  }
}
