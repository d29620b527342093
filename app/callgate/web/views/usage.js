// @ts-check
// What was used, by day, key and model.

import { html, nothing, render } from "../lit.js";
import { get } from "../api.js";
import * as format from "../format.js";
import { fail, table } from "./shared.js";

export const title = "Usage";

/** @type {HTMLElement} */ let root;
/** @type {any} */ let usage = null;
let refused = "";
/** @type {URLSearchParams} */ let query;

/** @param {HTMLElement} main @param {string[]} _ @param {URLSearchParams} asked */
export function show(main, _, asked) {
  root = main;
  query = asked;
  usage = null;
  const days = query.get("days") ?? "7";
  const by = query.get("by") ?? "key";
  get(`v1/usage?${new URLSearchParams({ days, by })}`).then(
    (answer) => {
      if (query !== asked) return;
      usage = answer;
      refused = "";
      draw();
    },
    (failure) => {
      if (query !== asked) return;
      refused = failure.message;
      if (failure.status === 401) fail(failure);
      draw();
    },
  );
  draw();
}

/** What is measured of calls and answers, and how it is headed. @type {Record<string, Record<string, string>>} */
const OF_CALLS = {
  tool: { calls: "Calls", failed_calls: "Failed", broken_calls: "Broken, not run", cost: "Cost", p50: "p50", p95: "p95" },
  provider: { answers: "Answers", failed_attempts: "Failed attempts", first_p50: "First words", p50: "p50", p95: "p95" },
  flaw: { broken_calls: "Broken calls" },
};

/** @param {string} by */
function ofCalls(by) {
  const measures = Object.entries(OF_CALLS[by]);
  const shown = (row, /** @type {string} */ name) => {
    if (name === "cost") return format.money(row.cost);
    return /p50|p95/.test(name) ? format.seconds(row[name]) : format.count(row[name]);
  };
  return table(
    "Usage",
    [by, ...measures.map(([, head]) => `#${head}`)],
    (usage?.data ?? []).map((row) => html`<tr><td>${row.name.replaceAll("_", by === "flaw" ? " " : "_") || "–"}</td>${measures.map(([name]) => html`<td class="number">${shown(row, name)}</td>`)}</tr>`),
    "calls",
  );
}

function draw() {
  const change = (event) => {
    query.set(event.target.name, event.target.value);
    location.hash = `#/usage?${query}`;
  };
  const choose = (/** @type {string} */ name, /** @type {string[]} */ values, /** @type {string} */ usual) =>
    html`<select name=${name} @change=${change}>${values.map((each) => html`<option ?selected=${each === (query.get(name) ?? usual)}>${each}</option>`)}</select>`;
  const by = query.get("by") ?? "key";
  const all = (usage?.data ?? []).reduce((sum, row) => sum + row.tokens_in + row.tokens_out, 0) || 1;
  render(
    html`<form class="filters" aria-label="Period"><label>Days ${choose("days", ["1", "7", "30"], "7")}</label><label>By ${choose("by", ["key", "model", "day", ...Object.keys(OF_CALLS)], "key")}</label></form>
      ${by in OF_CALLS ? ofCalls(by) : table(
        "Usage",
        [query.get("by") ?? "key", "#Requests", "#Failed", "#Tool calls", "#Tokens in", "#Cached", "#Written", "#Tokens out", "#Cost", "Share of tokens"],
        (usage?.data ?? []).map(
          (row) => html`<tr><td>${row.name}</td>
            ${["requests", "failed", "calls", "tokens_in", "tokens_cached", "tokens_cache_written", "tokens_out"].map((name) => html`<td class="number">${format.count(row[name])}</td>`)}
            <td class="number">${format.cost(row.cost, row.unpriced_requests)}</td>
            <td><meter min="0" max=${all} value=${row.tokens_in + row.tokens_out} aria-label="share of tokens of ${row.name}"></meter></td></tr>`,
        ),
        "usage",
      )}
      ${usage?.data.length ? nothing : html`<p class="empty" role="status">${refused || (usage ? "Nothing was used in this time." : "Loading …")}</p>`}`,
    root,
  );
}
