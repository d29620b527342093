// @ts-check
// Models: how each is reached, how it fares, what it costs, and whether it answers.

import { html, nothing, render } from "../lit.js";
import { get, send } from "../api.js";
import * as format from "../format.js";
import { fail, table } from "./shared.js";

export const title = "Models";

/** @type {HTMLElement} */ let root;
/** @type {any[]} */ let models = [];
/** What became of attempts: by whom, how they went, how many. @type {{deployment: string, host: string, result: string, count: number}[]} */ let attempts = [];
let noMetrics = "";
let state = "Loading …";
/** What came of asking a model. @type {Map<string, {text: string, isBad: boolean}>} */ let examined = new Map();

/** @param {HTMLElement} main */
export function show(main) {
  root = main;
  models = [];
  state = "Loading …";
  load();
  draw();
  const clock = setInterval(() => models.some((model) => deploymentsOf(model).some((each) => each.cooldown_seconds)) && load(), 5000);
  return () => clearInterval(clock);
}

/** @param {string} event */
export function onFeed(event) {
  if (event === "back") load();
}

async function load() {
  try {
    models = (await get("v1/models?details=1&price=1")).data;
    state = "This key may ask no model.";
  } catch (failure) {
    fail(failure);
    state = /** @type {Error} */ (failure).message;
  }
  draw();
  try {
    attempts = readAttempts(await (await send("metrics")).text());
    noMetrics = "";
  } catch (failure) {
    noMetrics = `Attempts are not shown: ${/** @type {Error} */ (failure).message}`;
  }
  draw();
}

/** @param {string} text of /metrics */
function readAttempts(text) {
  const found = [];
  for (const line of text.split("\n")) {
    const [, labels, count] = /^callgate_upstream_attempts_total\{(.*)\} (\S+)$/.exec(line) ?? [];
    if (labels === undefined) continue;
    /** @type {Record<string, string>} */
    const of = Object.fromEntries([...labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value.replace(/\\(.)/g, (_, each) => (each === "n" ? "\n" : each))]));
    found.push({ deployment: of.deployment, host: of.host, result: of.result, count: Number(count) });
  }
  return found;
}

const deploymentsOf = (model) => model.x_callgate?.deployments ?? [{}];

async function examine(model) {
  examined.set(model.id, { text: "asking …", isBad: false });
  draw();
  const began = performance.now();
  const json = { model: model.id, messages: [{ role: "user", content: "Say OK." }], max_tokens: 1 };
  try {
    const answer = await get("v1/chat/completions", { method: "POST", json, headers: { "x-callgate-tools": "none" } });
    const used = answer.usage?.total_tokens;
    examined.set(model.id, { text: `answers in ${format.seconds((performance.now() - began) / 1000)}${used ? `, ${used} tokens` : ""}`, isBad: false });
  } catch (failure) {
    examined.set(model.id, { text: `${/** @type {any} */ (failure).status || ""} ${/** @type {Error} */ (failure).message}`, isBad: true });
  }
  load();
}

function draw() {
  render(
    html`${table(
        "Models",
        ["Model", "Lane", "Host", "Calls tools", "State", "#Attempts", "#$ / million tokens", "Ask it"],
        models.flatMap((model) => deploymentsOf(model).map((each, /** @type {number} */ place) => line(model, each, place === 0))),
      )}
      ${models.length ? nothing : html`<p class="empty" role="status">${state}</p>`}
      ${noMetrics ? html`<p class="empty">${noMetrics}</p>` : nothing}
      <p><small>“Cooling down”: a deployment that failed three times running is not asked for a while. Attempts are those since this process began.
        Asking a model costs a few tokens; <code>callgate doctor</code> looks at everything that is configured.</small></p>`,
    root,
  );
}

function line(model, each, /** @type {boolean} */ isFirst) {
  const mine = attempts.filter((one) => one.deployment === each.deployment && (!each.host || one.host === each.host));
  /** @type {Map<string, number>} */ const failed = new Map();
  for (const one of mine) if (one.result !== "answered") failed.set(one.result, (failed.get(one.result) ?? 0) + one.count);
  const found = examined.get(model.id);
  return html`<tr>
    <td>${isFirst ? model.id : ""}${each.deployment && each.deployment !== model.id ? html`<small>${each.deployment}</small>` : nothing}</td>
    <td>${each.lane ?? "not shown (loop.diagnostics: off)"}${each.why ? html` <small>${each.why}</small>` : nothing}</td>
    <td>${each.host ?? (each.lane === "demo" ? "built in" : html`<small>not shown to this key, or not known before it is asked</small>`)}</td>
    <td>${each.tool_calling ? `${each.tool_calling.format} (${each.tool_calling.decided_by})` : "not asked yet"}</td>
    <td>${each.cooldown_seconds ? html`<span class="odd">cooling down for ${format.seconds(each.cooldown_seconds)}</span>` : "in use"}
      ${isFirst && model.x_callgate?.concurrency ? html`<small>${model.x_callgate.concurrency.running} of ${model.x_callgate.concurrency.places} under way</small>` : nothing}</td>
    <td class="number">${mine.length ? format.count(mine.reduce((sum, one) => sum + one.count, 0)) : "–"}
      ${[...failed].map(([result, count]) => html`<small class="odd">${count} ${result}</small>`)}</td>
    <td class="number">${isFirst ? price(model.x_callgate?.price) : ""}</td>
    <td>${isFirst ? html`<button type="button" class="quiet" aria-label="Ask ${model.id}" @click=${() => examine(model)}>Ask</button>` : nothing}
      ${isFirst && found ? html`<small class=${found.isBad ? "odd" : ""} role="status">${found.text}</small>` : nothing}</td>
  </tr>`;
}

/** @param {any} price of a million tokens */
const price = (price) => (price ? `${price.prompt} in, ${price.completion} out` : "no price");
