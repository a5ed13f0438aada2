/** Chat models for tests. */

import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import type { BaseMessage } from "@langchain/core/messages";
import { AIMessage, ToolMessage } from "@langchain/core/messages";
import type { ChatResult } from "@langchain/core/outputs";

let calls = 0;

/** A message of a model that calls tools, all at once. */
export function toolCalls(...tools: [name: string, args: Record<string, unknown>][]): AIMessage {
  const made = tools.map(([name, args]) => ({ name, args, id: `call-${++calls}`, type: "tool_call" as const }));
  return new AIMessage({ content: "", tool_calls: made });
}

/** A message of a model that runs a command. */
export function execute(command: string): AIMessage {
  return toolCalls(["execute", { command }]);
}

/** Returns one line of its script after the other, whatever the messages are. */
export class ScriptedModel extends BaseChatModel {
  /** The messages that it was sent, each time. */
  readonly asked: BaseMessage[][] = [];
  readonly #script: (AIMessage | string)[];

  constructor(...script: (AIMessage | string)[]) {
    super({});
    this.#script = script;
  }

  _llmType(): string {
    return "scripted";
  }

  override bindTools(): this {
    return this;
  }

  async _generate(messages: BaseMessage[]): Promise<ChatResult> {
    const said = this.#script[this.asked.length] ?? "The script is over.";
    this.asked.push(messages);
    const message = typeof said === "string" ? new AIMessage(said) : said;
    return { generations: [{ text: String(message.content), message }] };
  }
}

/** Runs the user's message as a command, and returns its output. */
export class ObedientModel extends BaseChatModel {
  constructor() {
    super({});
  }

  _llmType(): string {
    return "obedient";
  }

  override bindTools(): this {
    return this;
  }

  async _generate(messages: BaseMessage[]): Promise<ChatResult> {
    const last = messages.at(-1);
    const message = last instanceof ToolMessage ? new AIMessage(last.text) : execute(last?.text ?? "");
    return { generations: [{ text: String(message.content), message }] };
  }
}

/** The answers of the tools of a conversation, in order. */
export function toolResults(state: { messages: BaseMessage[] }): string[] {
  return state.messages.filter((message) => message instanceof ToolMessage).map((message) => message.text);
}
