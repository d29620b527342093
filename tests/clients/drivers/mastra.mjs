// Mastra on its default OpenAI model, which is that of the Responses API: an agent with a tool of its own beside those of the house.
//
//     node mastra.mjs URL FOLDER PROMPT...   prints one line of JSON: what was said to each, and how often its own tool ran
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, folder, ...prompts] = process.argv.slice(2);
const from = createRequire(`${folder}/package.json`);
const load = (name) => import(pathToFileURL(from.resolve(name)));
const [{ Agent }, { createTool }, { createOpenAI }, { z }] = await Promise.all(
  ["@mastra/core/agent", "@mastra/core/tools", "@ai-sdk/openai", "zod"].map(load),
);

let ran = 0;
const look = createTool({
  id: "look",
  description: "Looks something up.",
  inputSchema: z.object({ q: z.string() }),
  execute: async () => {
    ran += 1;
    return "seen";
  },
});
const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "k" });
const agent = new Agent({ id: "tester", name: "tester", instructions: "Work.", model: provider("m"), tools: { look } });

const said = [];
const messages = [];
for (const prompt of prompts) {
  messages.push({ role: "user", content: prompt });
  const result = await agent.stream(messages, { maxSteps: 6, modelSettings: { maxRetries: 0 } });
  let text = "";
  for await (const piece of result.textStream) text += piece;
  said.push(text);
  const response = await result.response;
  messages.push(...(response.messages ?? []));
}
process.stdout.write(`${JSON.stringify({ said, ran })}\n`);
