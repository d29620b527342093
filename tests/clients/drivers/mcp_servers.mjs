// MCP servers that clients name, by a label of the config and by an address, as each client has it.
//
// node mcp_servers.mjs CLIENT URL KEY ADDRESS   prints one line of JSON: the text of both answers, and the servers of the calls in them

import Anthropic from "@anthropic-ai/sdk";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText } from "ai";
import OpenAI from "openai";

const OURS = "callgate:callgate";
const BETA = "mcp-client-2025-11-20";

function entry(label, address) {
  const named = { type: "mcp", server_label: label, require_approval: "never" };
  return address === OURS ? named : { ...named, server_url: address, headers: { "X-Api-Key": "tok-of-the-client-1" } };
}

async function openai(baseURL, apiKey, label, address) {
  const ai = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey, maxRetries: 0 });
  const response = await ai.responses.create({ model: "m", input: "go", tools: [entry(label, address)] });
  return [response.output_text, response.output.filter((item) => item.type === "mcp_call").map((item) => item.server_label)];
}

async function vercel(baseURL, apiKey, label, serverUrl) {
  const provider = createOpenAI({ baseURL: `${baseURL}/v1`, apiKey });
  const tools = { mcp: provider.tools.mcp({ serverLabel: label, serverUrl, requireApproval: "never" }) };
  const result = await generateText({ model: provider("m"), prompt: "go", tools, maxRetries: 0 });
  const ran = result.steps.flatMap((step) => step.content).filter((part) => part.type === "tool-result");
  return [result.text, ran.map((part) => part.output.serverLabel)];
}

async function anthropic(baseURL, apiKey, label, url) {
  const claude = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
  const message = await claude.beta.messages.create({
    model: "m",
    max_tokens: 100,
    messages: [{ role: "user", content: "go" }],
    mcp_servers: [{ type: "url", name: label, url }],
    tools: [{ type: "mcp_toolset", mcp_server_name: label }],
    betas: [BETA],
  });
  const blocks = (type) => message.content.filter((block) => block.type === type);
  return [blocks("text").map((block) => block.text).join(""), blocks("mcp_tool_use").map((block) => block.server_name)];
}

const [client, url, key, address] = process.argv.slice(2);
const ask = { openai, vercel, anthropic }[client];
console.log(JSON.stringify([await ask(url, key, "callgate", OURS), await ask(url, key, "far", address)]));
