/**
 * A graph for `langgraphjs dev`: each thread has a sandbox, which a restarted server finds again.
 *
 * Run `npx @langchain/langgraph-cli dev` in this directory; the server has its own checkpointer.
 */

import type { BaseLanguageModel } from "@langchain/core/language_models/base";
import { type KubernetesProviderOptions, KubernetesSandboxManager, loadOptions } from "sandpod";

export async function makeAgent(model: BaseLanguageModel | string, options: KubernetesProviderOptions) {
  return new KubernetesSandboxManager(options, { ttlIdleSeconds: 1800 }).createAgent(model);
}

/** The graph of `langgraph.json`, configured by `SANDPOD_*` variables and the configuration file. */
export const agent = () => makeAgent("anthropic:claude-sonnet-4-5", loadOptions());
