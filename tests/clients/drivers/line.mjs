// What the Node drivers share: the line protocol, and the tool and the type that all clients bring. See line.py.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { z } from "zod";

const packages = join(dirname(fileURLToPath(import.meta.url)), "..", "node_modules");
const meanings = { crane: "a bird with long legs", bank: "the side of a river" };

export const Person = z.object({ name: z.string(), age: z.number() });
export const Word = z.object({ word: z.string() });

/** The client's own tool, which remembers how it was called. */
export class OwnTool {
  ran = [];

  lookUp = ({ word }) => {
    this.ran.push(["lookup_word", { word }]);
    return `${word}: ${meanings[word]}`;
  };
}

/** Usage as the official client holds it. */
export function counted(usage) {
  return usage ? [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens] : null;
}

/** Plays what is asked for until the input ends. Whatever a library logs goes to stderr. */
export async function play(scenarios, ...names) {
  console.log = console.info = console.warn = console.debug = console.error;
  const known = { hello: () => ({ versions: Object.fromEntries(names.map((name) => [name, version(name)])) }), ...scenarios };
  for await (const line of createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    let answer;
    try {
      answer = await known[asked.do](asked);
    } catch (error) {
      answer = { error: described(error) };
    }
    process.stdout.write(JSON.stringify(answer) + "\n");
  }
  process.exit(0);
}

/** An error, by its type and by what it, or else what caused it, says of the answer. */
function described(error) {
  const told = [error, error.error, error.data?.error, error.cause].filter(Boolean);
  const find = (...names) => told.flatMap((one) => names.map((name) => one[name])).find((value) => value != null) ?? null;
  return {
    type: error.constructor?.name ?? typeof error,
    message: String(error.message ?? JSON.stringify(error)).slice(0, 2000),
    status: find("status", "statusCode"),
    code: find("code"),
    param: find("param"),
  };
}

function version(name) {
  return JSON.parse(readFileSync(join(packages, name, "package.json"), "utf-8")).version;
}
