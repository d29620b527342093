// The official Node client, with its stream helper, its parser and its tool runners.

import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { OwnTool, Person, Word, counted, play } from "./line.mjs";

const usageToo = { stream_options: { include_usage: true } };

function client(asked) {
  return new OpenAI({ baseURL: asked.base_url, apiKey: asked.key, defaultHeaders: asked.headers, maxRetries: asked.retries ?? 0 });
}

function question(asked) {
  return { model: asked.model, messages: [{ role: "user", content: asked.prompt }] };
}

function said(answer) {
  const [choice] = answer.choices;
  return {
    text: choice.message.content,
    finish: choice.finish_reason,
    usage: counted(answer.usage),
    seen: (choice.message.tool_calls ?? []).map((call) => call.function.name),
  };
}

async function plain(asked) {
  return said(await client(asked).chat.completions.create(question(asked)));
}

async function streamed(asked) {
  let pieces = 0;
  const stream = client(asked).chat.completions.stream({ ...question(asked), ...usageToo });
  stream.on("content", () => (pieces += 1));
  return { ...said(await stream.finalChatCompletion()), pieces };
}

async function tools(asked) {
  const own = new OwnTool();
  const seen = [];
  const tool = zodFunction({ name: "lookup_word", description: "What a word means.", parameters: Word, function: own.lookUp });
  const streaming = asked.stream ? { stream: true, ...usageToo } : {};
  const runner = client(asked).chat.completions.runTools({ ...question(asked), tools: [tool], ...streaming });
  runner.on("functionToolCall", (call) => seen.push(call.name));
  const answer = await runner.finalChatCompletion();
  return { ...said(answer), usage: counted(await runner.totalUsage()), seen, ran: own.ran };
}

async function models(asked) {
  const listed = [];
  for await (const model of client(asked).models.list()) listed.push(model.id);
  const one = await client(asked).models.retrieve(listed[1]);
  if (one.id !== listed[1]) throw new Error(`asked for ${listed[1]}, got ${one.id}`);
  return { models: listed };
}

async function structured(asked) {
  const fields = { ...question(asked), response_format: zodResponseFormat(Person, "person") };
  const { completions } = client(asked).chat;
  const answer = asked.stream ? await completions.stream(fields).finalChatCompletion() : await completions.parse(fields);
  return { parsed: answer.choices[0].message.parsed };
}

async function leave(asked) {
  const stream = await client(asked).chat.completions.create({ ...question(asked), stream: true });
  for await (const chunk of stream) {
    const text = chunk.choices[0]?.delta.content;
    if (text) return { text };
  }
  return {};
}

async function give_up(asked) {
  await client(asked).chat.completions.create(question(asked), { timeout: asked.patience * 1000 });
  return {};
}

await play({ plain, streamed, tools, models, structured, leave, give_up }, "openai");
