// The OpenAI Agents SDK for JavaScript on its chat model; by default it would speak the Responses API.

import { Agent, Runner, tool } from "@openai/agents-core";
import { OpenAIChatCompletionsModel } from "@openai/agents-openai";
import OpenAI from "openai";
import { OwnTool, Person, Word, play } from "./line.mjs";

function agent(asked, traits = {}) {
  const options = { defaultHeaders: asked.headers, maxRetries: asked.retries ?? 0 };
  const client = new OpenAI({ baseURL: asked.base_url, apiKey: asked.key, ...options });
  return new Agent({ name: "tester", model: new OpenAIChatCompletionsModel(client, asked.model), ...traits });
}

function run(asking, asked, options = {}) {
  return new Runner({ tracingDisabled: true }).run(asking, asked.prompt, options);
}

function said(result) {
  const { usage } = result.runContext;
  return {
    text: result.finalOutput,
    usage: [usage.inputTokens, usage.outputTokens, usage.totalTokens],
    seen: result.newItems.filter((item) => item.type === "tool_call_item").map((item) => item.rawItem.name),
  };
}

/** A stream read to its end, and how many pieces of text it had. */
async function read(result) {
  let pieces = 0;
  for await (const event of result) pieces += isText(event);
  await result.completed;
  return pieces;
}

async function plain(asked) {
  return said(await run(agent(asked), asked));
}

async function streamed(asked) {
  const result = await run(agent(asked), asked, { stream: true });
  const pieces = await read(result);
  return { ...said(result), pieces };
}

async function tools(asked) {
  const own = new OwnTool();
  const lookup = tool({ name: "lookup_word", description: "What a word means.", parameters: Word, execute: own.lookUp });
  const result = await run(agent(asked, { tools: [lookup] }), asked, { stream: asked.stream });
  if (asked.stream) await read(result);
  return { ...said(result), ran: own.ran };
}

async function structured(asked) {
  const result = await run(agent(asked, { outputType: Person }), asked, { stream: asked.stream });
  if (asked.stream) await read(result);
  return { parsed: result.finalOutput };
}

async function leave(asked) {
  const leaving = new AbortController();
  const result = await run(agent(asked), asked, { stream: true, signal: leaving.signal });
  let text = "";
  for await (const event of result) {
    if (!isText(event)) continue;
    text ||= event.data.delta;
    leaving.abort();
  }
  return { text };
}

async function give_up(asked) {
  await run(agent(asked), asked, { signal: AbortSignal.timeout(asked.patience * 1000) });
  return {};
}

function isText(event) {
  return event.type === "raw_model_stream_event" && event.data.type === "output_text_delta";
}

await play({ plain, streamed, tools, structured, leave, give_up }, "@openai/agents-core", "openai");
