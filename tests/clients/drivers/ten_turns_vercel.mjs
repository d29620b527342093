// Vercel's AI SDK in one conversation of ten turns, with a tool of its own beside those of the house, on one of its providers.
//
//     node ten_turns_vercel.mjs URL FOLDER FLAVOUR TURNS   prints one line of JSON: what was said, and how often its own tool ran
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, folder, flavour, turns] = process.argv.slice(2);
const from = createRequire(`${folder}/package.json`);
const load = (name) => import(pathToFileURL(from.resolve(name)));
const [{ createAnthropic }, { createOpenAI }, { createOpenAICompatible }, { generateText, isStepCount, jsonSchema, streamText, tool }] =
  await Promise.all(["@ai-sdk/anthropic", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "ai"].map(load));

const at = { baseURL: `${url}/v1`, apiKey: "k" };
const models = {
  compatible: () => createOpenAICompatible({ name: "callgate", ...at })("m"),
  openai: () => createOpenAI(at).chat("m"),
  responses: () => createOpenAI(at)("m"),
  anthropic: () => createAnthropic(at)("m"),
};

let ran = 0;
const look = tool({
  description: "Looks something up.",
  inputSchema: jsonSchema({ type: "object", properties: { q: { type: "string" } }, required: ["q"] }),
  execute: async () => {
    ran += 1;
    return "seen";
  },
});

const said = [];
const messages = [];
for (let turn = 1; turn <= Number(turns); turn += 1) {
  messages.push({ role: "user", content: `turn ${turn}` });
  const fields = { model: models[flavour](), system: "Work.", messages, tools: { look }, stopWhen: isStepCount(6), maxRetries: 0 };
  const result = turn % 2 ? await generateText(fields) : streamText({ ...fields, onError: ({ error }) => { throw error; } });
  if (turn % 2 === 0) for await (const part of result.fullStream) if (part.type === "error") throw part.error;
  const steps = await result.steps;
  said.push(steps.at(-1).content.filter((part) => part.type === "text").map((part) => part.text).join(""));
  messages.push(...(await result.response).messages);
}
process.stdout.write(`${JSON.stringify({ said, ran })}\n`);
