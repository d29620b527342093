// The official Node client on the Responses API, with its stream helper and its parser, and a loop that sends back all it was shown.

import OpenAI from "openai";
import { zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { OwnTool, Person, Word, play } from "./line.mjs";

function client(asked) {
  return new OpenAI({ baseURL: asked.base_url, apiKey: asked.key, defaultHeaders: asked.headers, maxRetries: asked.retries ?? 0 });
}

function question(asked) {
  return { model: asked.model, input: asked.prompt };
}

function said({ output, usage }) {
  return {
    text: output.filter((item) => item.type === "message").flatMap((item) => item.content.map((part) => part.text)).join("\n\n"),
    usage: [usage.input_tokens, usage.output_tokens, usage.total_tokens],
    seen: output.filter((item) => item.type === "function_call").map((item) => item.name),
  };
}

async function plain(asked) {
  return said(await client(asked).responses.create(question(asked)));
}

async function streamed(asked) {
  let pieces = 0;
  const stream = client(asked).responses.stream(question(asked));
  stream.on("response.output_text.delta", () => (pieces += 1));
  return { ...said(await stream.finalResponse()), pieces };
}

async function tools(asked) {
  const own = new OwnTool();
  const seen = [];
  const tool = zodResponsesFunction({ name: "lookup_word", description: "What a word means.", parameters: Word });
  const input = [{ role: "user", content: asked.prompt }];
  for (;;) {
    const fields = { model: asked.model, input, tools: [tool] };
    const { responses } = client(asked);
    const response = asked.stream ? await responses.stream(fields).finalResponse() : await responses.create(fields);
    const calls = response.output.filter((item) => item.type === "function_call");
    seen.push(...calls.map((call) => call.name));
    if (!calls.length) return { ...said(response), seen, ran: own.ran };
    input.push(...response.output.map(({ parsed_arguments, ...item }) => item));
    for (const call of calls) {
      const output = await own.lookUp(JSON.parse(call.arguments));
      input.push({ type: "function_call_output", call_id: call.call_id, output });
    }
  }
}

async function models(asked) {
  const listed = [];
  for await (const model of client(asked).models.list()) listed.push(model.id);
  return { models: listed };
}

async function structured(asked) {
  const fields = { ...question(asked), text: { format: zodTextFormat(Person, "person") } };
  const { responses } = client(asked);
  const response = asked.stream ? await responses.stream(fields).finalResponse() : await responses.parse(fields);
  return { parsed: response.output_parsed };
}

async function leave(asked) {
  const stream = await client(asked).responses.create({ ...question(asked), stream: true });
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") return { text: event.delta };
  }
  return {};
}

async function give_up(asked) {
  await client(asked).responses.create(question(asked), { timeout: asked.patience * 1000 });
  return {};
}

await play({ plain, streamed, tools, models, structured, leave, give_up }, "openai");
