// @ts-check
// The list of runs. It is asked for once; after that the feed says what is new.

import { html, nothing, render, repeat } from "../lit.js";
import { get } from "../api.js";
import * as format from "../format.js";
import { fail } from "./shared.js";

export const title = "Runs";

const PAGE = 50;
const MOST = 500;
const STATES = "answered handed_back turn_limit gave_up refused failed client_left cut_off under_way".split(" ");

/** @type {HTMLElement} */ let root;
/** @type {URLSearchParams} */ let filter;
/** @type {any[]} */ let rows = [];
/** @type {Map<string, any>} */ let fresh = new Map();
let next = "";
let isLoading = true;
let chosen = -1;
let frame = 0;
/** @type {string[]} */ let models = [];

/** @param {HTMLElement} main @param {string[]} _ @param {URLSearchParams} query */
export function show(main, _, query) {
  root = main;
  filter = query;
  rows = [];
  fresh = new Map();
  chosen = -1;
  load("");
  get("v1/models").then((list) => {
    models = list.data.map((/** @type {any} */ model) => model.id);
    schedule();
  }, fail);
  document.addEventListener("keydown", onKey);
  const clock = setInterval(() => rows.some((row) => row.state === "under_way") && schedule(), 1000);
  draw();
  return () => {
    document.removeEventListener("keydown", onKey);
    clearInterval(clock);
    cancelAnimationFrame(frame);
  };
}

async function load(/** @type {string} */ after) {
  isLoading = true;
  const query = new URLSearchParams(filter);
  query.set("limit", String(PAGE));
  if (after) query.set("after", after);
  try {
    const page = await get(`v1/runs?${query}`);
    rows = after ? [...rows, ...page.data] : page.data;
    next = page.next ?? "";
  } catch (failure) {
    fail(failure);
  }
  isLoading = false;
  schedule();
}

/** @param {string} event @param {any} data */
export function onFeed(event, data) {
  if (event !== "run" || !isWanted(data)) return;
  const known = rows.findIndex((row) => row.id === data.id);
  if (known >= 0) rows[known] = data;
  else if (scrollY > 40 || chosen >= 0) fresh.set(data.id, data); // nothing jumps under the reader's eyes
  else rows = [data, ...rows].slice(0, MOST);
  schedule();
}

function isWanted(/** @type {any} */ row) {
  for (const name of ["model", "key", "state"]) if (filter.get(name) && filter.get(name) !== row[name]) return false;
  return !filter.get("odd") || row.odd;
}

function schedule() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(draw);
}

function setFilter(/** @type {Event} */ event) {
  const field = /** @type {HTMLInputElement} */ (event.target);
  const value = field.type === "checkbox" ? (field.checked ? "1" : "") : field.value;
  if (value) filter.set(field.name, value);
  else filter.delete(field.name);
  location.hash = `#/runs?${filter}`;
}

function showFresh() {
  rows = [...fresh.values()].reverse().concat(rows).slice(0, MOST);
  fresh = new Map();
  chosen = -1;
  scrollTo(0, 0);
  schedule();
}

function onKey(/** @type {KeyboardEvent} */ event) {
  if (event.target instanceof HTMLElement && event.target.closest("input, select, textarea, dialog")) return;
  if (event.key === "j" || event.key === "k") {
    chosen = Math.max(0, Math.min(rows.length - 1, chosen + (event.key === "j" ? 1 : -1)));
    schedule();
    requestAnimationFrame(() => root.querySelector("tr.chosen a")?.scrollIntoView({ block: "nearest" }));
  } else if (event.key === "Enter" && rows[chosen]) location.hash = `#/run/${rows[chosen].id}`;
}

function draw() {
  const odd = filter.get("odd") === "1";
  const states = filter.get("state") && !STATES.includes(filter.get("state") ?? "") ? [...STATES, filter.get("state")] : STATES;
  render(
    html`<form class="filters" @change=${setFilter} @submit=${(/** @type {Event} */ e) => e.preventDefault()}>
        <label>Model ${select("model", models, filter.get("model"))}</label>
        <label>State ${select("state", states, filter.get("state"))}</label>
        <label>Key <input name="key" .value=${filter.get("key") ?? ""} size="12" /></label>
        <label class="check"><input type="checkbox" name="odd" .checked=${odd} /> only odd ones</label>
        ${fresh.size ? html`<button type="button" @click=${showFresh}>${fresh.size} new</button>` : nothing}
      </form>
      <table class="runs" aria-label="Runs">
        <thead>
          <tr>
            <th>State</th><th>Began</th><th>Model</th><th>Key</th><th class="number">Turns / calls</th>
            <th class="number">First words</th><th class="number">Took</th><th class="number">Tokens</th><th class="number">Cost</th>
          </tr>
        </thead>
        <tbody>
          ${repeat(rows, (row) => row.id, line)}
        </tbody>
      </table>
      ${rows.length ? nothing : html`<p class="empty">${isLoading ? "Loading …" : emptiness()}</p>`}
      ${next ? html`<button class="quiet" @click=${() => load(next)}>Older runs</button>` : nothing}`,
    root,
  );
}

const emptiness = () =>
  [...filter.keys()].length ? `No run matches ${decodeURIComponent(filter.toString()).replaceAll("&", ", ")}.` : "No runs yet.";

function select(/** @type {string} */ name, /** @type {(string | null)[]} */ values, /** @type {string | null} */ value) {
  return html`<select name=${name} .value=${value ?? ""}>
    <option value="" ?selected=${!value}>any</option>
    ${values.map((each) => html`<option value=${each ?? ""} ?selected=${each === value}>${each}</option>`)}
  </select>`;
}

function line(/** @type {any} */ row, /** @type {number} */ place) {
  const [mark, word] = format.state(row.state);
  const took = row.state === "under_way" ? Date.now() / 1000 - row.began : row.seconds;
  const odd = [
    row.broken_calls ? `${row.broken_calls} broken` : "",
    row.failed_calls ? `${row.failed_calls} failed` : "",
    row.attempts > row.turns ? `${row.attempts - row.turns} asked again` : "",
    ...row.findings,
  ].filter(Boolean);
  return html`<tr class=${place === chosen ? "chosen" : ""}>
    <td class="state ${row.state}"><a href="#/run/${row.id}"><span aria-hidden="true">${mark}</span> ${word}</a></td>
    <td><time datetime=${new Date(row.began * 1000).toISOString()}>${format.moment(row.began)}</time></td>
    <td>${row.model}${row.deployment && row.deployment !== row.model ? html` <small>→ ${row.deployment}</small>` : nothing}
      ${odd.length ? html`<small class="odd">${odd.join(" · ")}</small>` : nothing}
      ${row.error ? html`<small class="odd">${row.error}</small>` : nothing}</td>
    <td>${row.key}</td>
    <td class="number">${row.turns} / ${row.calls + row.broken_calls}</td>
    <td class="number">${format.seconds(row.first_seconds)}</td>
    <td class="number">${format.seconds(took)}</td>
    <td class="number">${format.count(row.tokens_in)} + ${format.count(row.tokens_out)}</td>
    <td class="number">${format.money(row.cost)}</td>
  </tr>`;
}
