// Vercel's AI SDK with its chat models, those of @ai-sdk/openai (`openai`) and of @ai-sdk/openai-compatible (`compatible`),
// with that of @ai-sdk/anthropic (`anthropic`), and with the Responses API, which @ai-sdk/openai (`responses`) and
// @ai-sdk/open-responses (`open`) speak.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, isStepCount, streamText, tool } from "ai";
import { OwnTool, Person, Word, play } from "./line.mjs";

const flavours = {
  anthropic: (asked) => createAnthropic({ baseURL: asked.base_url, apiKey: asked.key, headers: asked.headers })(asked.model),
  openai: (asked) => createOpenAI({ baseURL: asked.base_url, apiKey: asked.key, headers: asked.headers }).chat(asked.model),
  responses: (asked) => createOpenAI({ baseURL: asked.base_url, apiKey: asked.key, headers: asked.headers })(asked.model),
  open: (asked) =>
    createOpenResponses({ name: "callgate", url: `${asked.base_url}/responses`, apiKey: asked.key, headers: asked.headers })(
      asked.model,
    ),
  compatible: (asked) =>
    createOpenAICompatible({
      name: "callgate",
      baseURL: asked.base_url,
      apiKey: asked.key,
      headers: asked.headers,
      includeUsage: true,
      supportsStructuredOutputs: true,
    })(asked.model),
};

function question(asked) {
  return { model: flavours[asked.flavour](asked), prompt: asked.prompt, maxRetries: asked.retries ?? 0 };
}

async function said(result) {
  const [steps, usage] = await Promise.all([result.steps, result.totalUsage]);
  return {
    text: await lastText(result),
    finish: await result.finishReason,
    usage: [usage.inputTokens, usage.outputTokens, usage.totalTokens],
    seen: steps.flatMap((step) => step.toolCalls.filter((call) => !call.providerExecuted).map((call) => call.toolName)),
  };
}

/** What was said in the last step; a response may have several messages. */
async function lastText(result) {
  const texts = (await result.steps).at(-1).content.filter((part) => part.type === "text").map((part) => part.text.trim());
  return texts.join("\n\n");
}

/** A stream read to its end. Its errors come as parts and are thrown here, for the caller is to see them. */
async function read(result) {
  let pieces = 0;
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    pieces += part.type === "text-delta";
  }
  return pieces;
}

async function plain(asked) {
  return said(await generateText(question(asked)));
}

async function streamed(asked) {
  const result = streamText({ ...question(asked), onError: () => {} });
  const pieces = await read(result);
  return { ...(await said(result)), pieces };
}

async function tools(asked) {
  const own = new OwnTool();
  const lookup_word = tool({ description: "What a word means.", inputSchema: Word, execute: own.lookUp });
  const fields = { ...question(asked), tools: { lookup_word }, stopWhen: isStepCount(5) };
  if (!asked.stream) return { ...(await said(await generateText(fields))), ran: own.ran };
  const result = streamText({ ...fields, onError: () => {} });
  await read(result);
  return { ...(await said(result)), ran: own.ran };
}

async function structured(asked) {
  const fields = { ...question(asked), output: Output.object({ schema: Person }) };
  if (!asked.stream) return { parsed: (await generateText(fields)).output };
  const result = streamText({ ...fields, onError: () => {} });
  await read(result);
  return { parsed: await result.output };
}

async function leave(asked) {
  const leaving = new AbortController();
  const result = streamText({ ...question(asked), abortSignal: leaving.signal, onError: () => {} });
  let text = "";
  for await (const part of result.textStream) {
    text ||= part;
    leaving.abort();
  }
  return { text };
}

async function give_up(asked) {
  await generateText({ ...question(asked), abortSignal: AbortSignal.timeout(asked.patience * 1000) });
  return {};
}

const packages = ["ai", "@ai-sdk/anthropic", "@ai-sdk/open-responses", "@ai-sdk/openai", "@ai-sdk/openai-compatible"];
await play({ plain, streamed, tools, structured, leave, give_up }, ...packages);
