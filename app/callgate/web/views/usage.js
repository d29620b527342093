// @ts-check
// What was used, by day, key and model.

import { html, nothing, render } from "../lit.js";
import { get } from "../api.js";
import * as format from "../format.js";
import { fail } from "./shared.js";

export const title = "Keys & usage";

/** @type {HTMLElement} */ let root;
/** @type {any} */ let usage = null;
/** @type {URLSearchParams} */ let query;

/** @param {HTMLElement} main @param {string[]} _ @param {URLSearchParams} asked */
export function show(main, _, asked) {
  root = main;
  query = asked;
  usage = null;
  const days = query.get("days") ?? "7";
  const by = query.get("by") ?? "key";
  get(`v1/usage?${new URLSearchParams({ days, by })}`).then((answer) => {
    usage = answer;
    draw();
  }, fail);
  draw();
}

function draw() {
  const change = (/** @type {any} */ event) => {
    query.set(event.target.name, event.target.value);
    location.hash = `#/usage?${query}`;
  };
  const choose = (/** @type {string} */ name, /** @type {string[]} */ values, /** @type {string} */ usual) =>
    html`<select name=${name} @change=${change}>${values.map((each) => html`<option ?selected=${each === (query.get(name) ?? usual)}>${each}</option>`)}</select>`;
  const most = Math.max(1, ...(usage?.data ?? []).map((/** @type {any} */ row) => row.tokens_in + row.tokens_out));
  render(
    html`<form class="filters"><label>Days ${choose("days", ["1", "7", "30"], "7")}</label><label>By ${choose("by", ["key", "model", "day"], "key")}</label></form>
      <table aria-label="Usage">
        <thead><tr><th>${query.get("by") ?? "key"}</th><th class="number">Requests</th><th class="number">Failed</th><th class="number">Tool calls</th>
          <th class="number">Tokens in</th><th class="number">Tokens out</th><th class="number">Cost</th><th></th></tr></thead>
        <tbody>
          ${(usage?.data ?? []).map(
            (/** @type {any} */ row) => html`<tr>
              <td>${row.name}</td><td class="number">${format.count(row.requests)}</td><td class="number">${format.count(row.failed)}</td>
              <td class="number">${format.count(row.calls)}</td><td class="number">${format.count(row.tokens_in)}</td>
              <td class="number">${format.count(row.tokens_out)}</td><td class="number">${format.money(row.cost)}</td>
              <td><meter min="0" max=${most} value=${row.tokens_in + row.tokens_out} aria-label="share of tokens"></meter></td>
            </tr>`,
          )}
        </tbody>
      </table>
      ${usage?.data.length ? nothing : html`<p class="empty">${usage ? "Nothing was used in this time." : "Loading …"}</p>`}
      ${usage?.keys
        ? html`<h2>Keys</h2>
          <table aria-label="Keys"><thead><tr><th>Key</th><th>Models</th><th>Tools</th><th>Rights</th><th class="number">Today</th><th class="number">This month</th></tr></thead>
            <tbody>${usage.keys.map(
              (/** @type {any} */ key) => html`<tr><td>${key.name}</td><td>${key.models.join(", ")}</td><td>${key.tools.join(", ")}</td>
                <td>${key.rights.join(", ") || "–"}</td><td class="number">${limit(key.today, key.budget_per_day)}</td>
                <td class="number">${limit(key.month, key.budget_per_month)}</td></tr>`,
            )}</tbody></table>`
        : nothing}`,
    root,
  );
}

const limit = (/** @type {number} */ spent, /** @type {number | null} */ budget) => (budget ? `${format.money(spent)} of ${format.money(budget)}` : format.money(spent));
