// Anthropic's Node client, with its stream helper, its parser and its tool runner, which asks for a thread at first.

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { OwnTool, Person, Word, play } from "./line.mjs";

const FINISH = { end_turn: "stop", tool_use: "tool_calls", max_tokens: "length", refusal: "content_filter" };

function client(asked) {
  const baseURL = asked.base_url.replace(/\/v1$/, "");
  return new Anthropic({ baseURL, apiKey: asked.key, defaultHeaders: asked.headers, maxRetries: asked.retries ?? 0 });
}

function question(asked) {
  return { model: asked.model, max_tokens: 500, messages: [{ role: "user", content: asked.prompt }] };
}

function said(message) {
  const { usage } = message;
  const prompt = usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0);
  const blocks = (type) => message.content.filter((block) => block.type === type);
  return {
    text: blocks("text").map((block) => block.text).join(""),
    finish: FINISH[message.stop_reason],
    usage: [prompt, usage.output_tokens, prompt + usage.output_tokens],
    seen: blocks("tool_use").map((block) => block.name),
  };
}

async function plain(asked) {
  return said(await client(asked).messages.create(question(asked)));
}

async function streamed(asked) {
  let pieces = 0;
  const stream = client(asked).messages.stream(question(asked));
  stream.on("text", () => (pieces += 1));
  return { ...said(await stream.finalMessage()), pieces };
}

async function tools(asked) {
  const own = new OwnTool();
  const seen = [];
  const tool = betaZodTool({ name: "lookup_word", description: "What a word means.", inputSchema: Word, run: own.lookUp });
  const runner = client(asked).beta.messages.toolRunner({ ...question(asked), tools: [tool], stream: asked.stream });
  let last;
  for await (const turn of runner) {
    last = asked.stream ? await turn.finalMessage() : turn;
    seen.push(...said(last).seen);
  }
  return { ...said(last), seen, ran: own.ran };
}

async function models(asked) {
  const listed = [];
  for await (const model of client(asked).models.list({ limit: 2 })) listed.push(model.id);
  const one = await client(asked).models.retrieve(listed[0]);
  if (one.id !== listed[0]) throw new Error(`asked for ${listed[0]}, got ${one.id}`);
  return { models: listed };
}

async function structured(asked) {
  const fields = { ...question(asked), output_config: { format: zodOutputFormat(Person) } };
  const { messages } = client(asked);
  const answer = asked.stream ? await messages.stream(fields).finalMessage() : await messages.parse(fields);
  return { parsed: answer.parsed_output ?? JSON.parse(said(answer).text) };
}

async function leave(asked) {
  const stream = await client(asked).messages.create({ ...question(asked), stream: true });
  for await (const event of stream) {
    if (event.type === "content_block_delta") return { text: event.delta.text };
  }
  return {};
}

async function give_up(asked) {
  await client(asked).messages.create(question(asked), { timeout: asked.patience * 1000 });
  return {};
}

await play({ plain, streamed, tools, models, structured, leave, give_up }, "@anthropic-ai/sdk");
