// LangChain's ChatOpenAI for JavaScript, with the tool loop its documentation shows.

import { HumanMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { OwnTool, Person, Word, play } from "./line.mjs";

function model(asked, options = {}) {
  return new ChatOpenAI({
    model: asked.model,
    apiKey: asked.key,
    configuration: { baseURL: asked.base_url, defaultHeaders: asked.headers },
    maxRetries: asked.retries ?? 0,
    ...options,
  });
}

function said(message) {
  const usage = message.usage_metadata;
  return {
    text: message.text,
    finish: message.response_metadata.finish_reason ?? null,
    usage: usage ? [usage.input_tokens, usage.output_tokens, usage.total_tokens] : null,
    seen: (message.tool_calls ?? []).map((call) => call.name),
  };
}

async function gathered(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return { whole: pieces.reduce((one, other) => one.concat(other)), pieces: pieces.filter((piece) => piece.text).length };
}

async function plain(asked) {
  return said(await model(asked).invoke(asked.prompt));
}

async function streamed(asked) {
  const { whole, pieces } = await gathered(await model(asked).stream(asked.prompt));
  return { ...said(whole), pieces };
}

async function tools(asked) {
  const own = new OwnTool();
  const seen = [];
  const lookup = tool(own.lookUp, { name: "lookup_word", description: "What a word means.", schema: Word });
  const bound = model(asked).bindTools([lookup]);
  const messages = [new HumanMessage(asked.prompt)];
  for (;;) {
    const answer = asked.stream ? (await gathered(await bound.stream(messages))).whole : await bound.invoke(messages);
    seen.push(...answer.tool_calls.map((call) => call.name));
    if (!answer.tool_calls.length) return { ...said(answer), seen, ran: own.ran };
    messages.push(answer);
    for (const call of answer.tool_calls) messages.push(await lookup.invoke(call));
  }
}

async function structured(asked) {
  const asking = model(asked).withStructuredOutput(Person, { name: "person", method: "jsonSchema" });
  if (!asked.stream) return { parsed: await asking.invoke(asked.prompt) };
  let parsed = null;
  for await (const part of await asking.stream(asked.prompt)) parsed = part;
  return { parsed };
}

async function leave(asked) {
  for await (const piece of await model(asked).stream(asked.prompt)) {
    if (piece.text) return { text: piece.text };
  }
  return {};
}

async function give_up(asked) {
  await model(asked, { timeout: asked.patience * 1000 }).invoke(asked.prompt);
  return {};
}

await play({ plain, streamed, tools, structured, leave, give_up }, "@langchain/openai", "@langchain/core");
