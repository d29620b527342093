// @ts-check
// The list of runs. It is asked for once; after that the feed says what is new.

import { html, nothing, render, repeat } from "../lit.js";
import { get } from "../api.js";
import * as format from "../format.js";
import { fail, table } from "./shared.js";

export const title = "Runs";

const PAGE = 50;
const MOST = 500;
const STATES = "answered handed_back turn_limit gave_up refused failed client_left cut_off stopped under_way".split(" ");
const FILTERS = ["model", "state", "key", "tool", "finding", "odd"];

/** @type {HTMLElement} */ let root;
/** @type {URLSearchParams} */ let filter;
/** @type {any[]} */ let rows = [];
/** @type {Map<string, any>} */ let fresh = new Map();
let next = "";
let isLoading = true;
let refused = "";
let chosen = -1;
let isUnderMouse = false;
let frame = 0;
let asked = 0;
/** @type {string[]} */ let models = [];
/** What was used in each minute of the last hour. @type {any} */ let hour = null;
let hourAt = 0;

/** @param {HTMLElement} main @param {string[]} _ @param {URLSearchParams} query */
export function show(main, _, query) {
  root = main;
  filter = query;
  rows = [];
  chosen = -1;
  isUnderMouse = false;
  load("");
  loadHour();
  get("v1/models").then((list) => {
    models = list.data.map((model) => model.id);
    schedule();
  }, fail);
  document.addEventListener("keydown", onKey);
  const clock = setInterval(() => rows.some((row) => row.state === "under_way") && schedule(), 1000);
  draw();
  return () => {
    document.removeEventListener("keydown", onKey);
    clearInterval(clock);
    cancelAnimationFrame(frame);
    asked += 1;
  };
}

/** When something happens after a minute. */
function loadHour() {
  hourAt = Date.now();
  get("v1/usage?by=minute").then((found) => ((hour = found), schedule()), () => (hour = null)); // the list says why
}

/** The last hour as bars: requests, and in red those that failed. */
function strip() {
  const most = Math.max(...hour.data.map((each) => each.requests));
  const sum = (/** @type {string} */ what) => hour.data.reduce((all, each) => all + each[what], 0);
  const bars = (/** @type {string} */ what) =>
    hour.data.map((each) => {
      const height = (each[what] / most) * 20;
      return `M${(Date.parse(each.name) - Date.parse(hour.since)) / 60_000} 20v-${height}h.8v${height}z`;
    });
  const words = `Last hour, this process: ${format.many(sum("requests"), "request")}, ${sum("failed")} failed, at most ${most} a minute`;
  return html`<p class="hour"><svg viewBox="0 0 60 20" preserveAspectRatio="none" role="img" aria-label=${words}><path d=${bars("requests").join("")} /><path class="failed" d=${bars("failed").join("")} /></svg>
    <small>${words}</small></p>`;
}

async function load(/** @type {string} */ after) {
  isLoading = true;
  const mine = (asked += 1);
  const query = new URLSearchParams();
  for (const name of FILTERS) if (filter.get(name)) query.set(name, filter.get(name) ?? "");
  query.set("limit", String(PAGE));
  if (after) query.set("after", after);
  else fresh = new Map();
  try {
    const page = await get(`v1/runs?${query}`);
    if (mine !== asked) return; // the filter has changed meanwhile
    const known = new Set(rows.map((row) => row.id));
    rows = after ? [...rows, ...page.data.filter((row) => !known.has(row.id))] : page.data;
    next = page.next ?? "";
    refused = "";
  } catch (failure) {
    if (mine !== asked) return;
    refused = /** @type {Error} */ (failure).message;
    if (/** @type {any} */ (failure).status !== 403) fail(failure);
  }
  isLoading = false;
  schedule();
}

/** @param {string} event @param {any} data */
export function onFeed(event, data) {
  if (event === "back") load("");
  if (event === "back" || (event === "run" && Date.now() - hourAt > 60_000)) loadHour();
  if (event !== "run") return;
  const known = rows.findIndex((row) => row.id === data.id);
  if (known >= 0) rows[known] = data;
  else if (!isWanted(data)) return;
  else if (scrollY > 40 || chosen >= 0 || isUnderMouse) fresh.set(data.id, data); // nothing jumps under the reader's eyes
  else rows = [data, ...rows].slice(0, MOST);
  schedule();
}

function isWanted(row) {
  const has = (/** @type {string} */ name) => filter.get(name) ?? "";
  for (const name of ["model", "key", "state"]) if (has(name) && has(name) !== row[name]) return false;
  if (has("tool") && !row.tools.includes(has("tool"))) return false;
  if (has("finding") && !row.findings.includes(has("finding"))) return false;
  return has("odd") !== "1" || row.odd;
}

function schedule() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(draw);
}

function setFilter(/** @type {Event} */ event) {
  const field = /** @type {HTMLInputElement} */ (event.target);
  const value = field.type === "checkbox" ? (field.checked ? "1" : "") : field.value.trim();
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
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target instanceof HTMLElement && event.target.closest("input, select, textarea, dialog, a, button")) return;
  if (event.key === "j" || event.key === "k") {
    chosen = Math.max(0, Math.min(rows.length - 1, chosen + (event.key === "j" ? 1 : -1)));
    draw();
    root.querySelector("tr.chosen a")?.scrollIntoView({ block: "nearest" });
  } else if (event.key === "Enter" && rows[chosen]) location.hash = `#/run/${encodeURIComponent(rows[chosen].id)}`;
}

function draw() {
  const under = (/** @type {boolean} */ now) => () => (isUnderMouse = now);
  const text = (/** @type {string} */ name, /** @type {string} */ label) =>
    html`<label>${label} <input name=${name} .value=${filter.get(name) ?? ""} size="12" /></label>`;
  render(
    html`<form class="filters" aria-label="Filters" @change=${setFilter} @submit=${(/** @type {Event} */ e) => e.preventDefault()}>
        <label>Model ${select("model", models)}</label>
        <label>State ${select("state", STATES)}</label>
        ${text("key", "Key")} ${text("tool", "Tool")} ${text("finding", "Finding")}
        <label class="check"><input type="checkbox" name="odd" .checked=${filter.get("odd") === "1"} /> problems only</label>
        ${fresh.size ? html`<button type="button" class="fresh" @click=${showFresh}>${fresh.size} new</button>` : nothing}
      </form>
      ${hour?.data.length ? strip() : nothing}
      <div @mouseenter=${under(true)} @mouseleave=${under(false)}>
        ${table("Runs", ["State", "Began", "Model", "Key", "#Turns / calls", "#First words", "#Took", "#Tokens in + out", "#Cost"], repeat(rows, (row) => row.id, line), "runs")}
      </div>
      ${rows.length ? nothing : html`<p class="empty" role="status">${emptiness()}</p>`}
      ${next ? html`<button type="button" class="quiet" ?disabled=${isLoading} @click=${() => load(next)}>Older runs</button>` : nothing}
      <p><small>j and k move, Enter opens. Problems: an error, a broken or failed call, an attempt that failed, or an end without an answer. A broken call was never run.</small></p>`,
    root,
  );
}

function emptiness() {
  if (isLoading) return "Loading …";
  if (refused) return refused;
  const wanted = FILTERS.filter((name) => filter.get(name)).map((name) => `${name} ${filter.get(name)}`);
  if (wanted.length) return `No run matches ${wanted.join(", ")}.${next ? " Older ones may." : ""}`;
  return "No runs yet. Requests that are passed through without a tool are recorded when they fail (record.passed).";
}

function select(/** @type {string} */ name, /** @type {string[]} */ known) {
  const value = filter.get(name) ?? "";
  const values = value && !known.includes(value) ? [...known, value] : known;
  return html`<select name=${name} .value=${value}>
    <option value="" ?selected=${!value}>any</option>
    ${values.map((each) => html`<option value=${each} ?selected=${each === value}>${each}</option>`)}
  </select>`;
}

function line(row, /** @type {number} */ place) {
  const [mark, word] = format.state(row.state);
  const took = row.state === "under_way" ? Date.now() / 1000 - row.began : row.seconds;
  const odd = [
    row.error,
    row.broken_calls ? format.many(row.broken_calls, "broken call") : "",
    row.failed_calls ? format.many(row.failed_calls, "failed call") : "",
    row.attempts > row.turns && row.turns ? format.many(row.attempts - row.turns, "failed attempt") : "",
    ...row.findings,
  ].filter(Boolean);
  return html`<tr class=${place === chosen ? "chosen" : ""}>
    <td class="state ${row.state}"><a href="#/run/${encodeURIComponent(row.id)}"><span aria-hidden="true">${mark}</span> ${word}</a></td>
    <td><time datetime=${new Date(row.began * 1000).toISOString()}>${format.moment(row.began)}</time></td>
    <td>${row.model || row.route}${row.deployment && row.deployment !== row.model ? html` <small>→ ${row.deployment}</small>` : nothing}
      ${odd.length ? html`<small class="odd">${odd.join(" · ")}</small>` : nothing}
      ${row.replay_of ? html`<small>a replay</small>` : nothing}</td>
    <td>${row.key}</td>
    <td class="number">${row.turns} / ${row.calls + row.broken_calls}</td>
    <td class="number">${format.seconds(row.first_seconds)}</td>
    <td class="number">${format.seconds(took)}</td>
    <td class="number">${format.count(row.tokens_in)} + ${format.count(row.tokens_out)}</td>
    <td class="number">${row.turns && row.route !== "tool" ? format.money(row.cost) : "–"}</td>
  </tr>`;
}
