// Asks the search of a built site, as its pages do: the worker that the theme brings, with the site's own index.
// node search.mjs SITE < queries.json: for each query the pages found, best first.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { runInThisContext } from "node:vm";

const site = process.argv[2];
const workers = join(site, "assets/javascripts/workers");
const [worker] = readdirSync(workers).filter((name) => /^search\..*\.js$/.test(name));

let listener;
let answered;
globalThis.self = globalThis;
globalThis.addEventListener = (_, ours) => { listener = ours; };
globalThis.postMessage = (message) => answered(message);
const asked = (message) => new Promise((resolve) => { answered = resolve; listener({ data: message }); });

runInThisContext(readFileSync(join(workers, worker), "utf8"));
const index = JSON.parse(readFileSync(join(site, "search/search_index.json"), "utf8"));
await asked({ type: 0, data: { ...index, options: { suggest: false } } });
const found = {};
for (const query of JSON.parse(readFileSync(0, "utf8"))) {
  const { data } = await asked({ type: 2, data: query });
  found[query] = data.items.map(([first]) => first.location.split("#")[0]);
}
process.stdout.write(JSON.stringify(found));
