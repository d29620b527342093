// The tools of providers in the AI SDK: two turns of a chat with each, whole and streamed; a line of JSON for each chat.

import { generateText, streamText } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";

const url = process.env.CALLGATE_URL;
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "k" });
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "k" });
const cases = {
  "openai search": [openai.responses("search"), { web_search: openai.tools.webSearch({}) }],
  "openai code": [openai.responses("code"), { code_interpreter: openai.tools.codeInterpreter({}) }],
  "openai files": [openai.responses("files"), { file_search: openai.tools.fileSearch({ vectorStoreIds: ["vs"] }) }],
  "openai image": [openai.responses("image"), { image_generation: openai.tools.imageGeneration({}) }],
  "anthropic search": [anthropic("search"), { web_search: anthropic.tools.webSearch_20250305({ maxUses: 3 }) }],
  "anthropic page": [anthropic("page"), { web_fetch: anthropic.tools.webFetch_20250910({ maxUses: 3 }) }],
  "anthropic code": [anthropic("code"), { code_execution: anthropic.tools.codeExecution_20250522({}) }],
};

async function turn(mode, asked) {
  if (mode === "whole") {
    const answer = await generateText(asked);
    return [answer.text, answer.toolResults.length, answer.response.messages];
  }
  const errors = [];
  const answer = streamText({ ...asked, onError: ({ error }) => errors.push(String(error)) });
  for await (const _ of answer.fullStream);
  if (errors.length) throw new Error(errors.join());
  return [await answer.text, (await answer.toolResults).length, (await answer.response).messages];
}

for (const [name, [model, tools]] of Object.entries(cases)) {
  for (const mode of ["whole", "streamed"]) {
    let said;
    try {
      const first = [{ role: "user", content: "go" }];
      const [text, results, messages] = await turn(mode, { model, tools, messages: first, maxOutputTokens: 100, maxRetries: 0 });
      const next = [...first, ...messages, { role: "user", content: "and now?" }];
      const [again] = await turn(mode, { model, tools, messages: next, maxOutputTokens: 100, maxRetries: 0 });
      said = { texts: [text, again], results };
    } catch (error) {
      said = { error: String(error) };
    }
    process.stdout.write(`${JSON.stringify({ name: `${name}, ${mode}`, ...said })}\n`);
  }
}
