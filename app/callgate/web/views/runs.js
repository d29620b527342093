// @ts-check
// The list of runs. It is asked for once; after that the feed says what is new.

import { html, nothing, render, repeat } from "../lit.js";
import { get } from "../api.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { fail, table } from "./shared.js";

export const title = "Runs";

const PAGE = 200;
const MOST = 1000;
const STATES = "answered handed_back turn_limit gave_up refused failed client_left cut_off stopped under_way".split(" ");
const FILTERS = ["model", "state", "key", "tool", "finding", "odd", "outcome", "provider", "q", "since", "until"];
const ORDERS = ["newest", "oldest", "slowest", "dearest", "largest"];
/** @type {[string, string, number][]} */
const TIMES = [["hour", "last hour", 3600], ["day", "last 24 hours", 86_400], ["week", "last 7 days", 604_800], ["month", "last 30 days", 2_592_000]];

/** @type {HTMLElement} */ let root;
/** @type {URLSearchParams} */ let filter = new URLSearchParams();
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
/** By what runs can be filtered. @type {Record<string, string[]>} */ let names = {};
/** What the runs of the filter come to. @type {any} */ let totals = null;
let totalsAt = 0;
/** What was used in each minute of the last hour. @type {any} */ let hour = null;
let hourAt = 0;

/** @param {HTMLElement} main @param {string[]} _ @param {URLSearchParams} query */
export function show(main, _, query) {
  root = main;
  filter = query;
  rows = [];
  totals = null;
  chosen = -1;
  isUnderMouse = false;
  load("");
  loadHour();
  loadTotals();
  get("v1/models").then((list) => {
    models = list.data.map((model) => model.id);
    schedule();
  }, fail);
  get("v1/runs/names").then((found) => ((names = found), schedule()), () => (names = {})); // the list says why
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

/**
 * The runs beside one in the list as it was shown last.
 * @param {string} id @returns {{above?: string, below?: string, list: string} | null} null where it is not in it
 */
export function beside(id) {
  const place = rows.findIndex((row) => row.id === id);
  if (place < 0) return null;
  return { above: rows[place - 1]?.id, below: rows[place + 1]?.id, list: `#/runs?${filter}` };
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

/** The filter as the server takes it: what the page calls `time` is a moment. */
function wantedQuery() {
  const query = new URLSearchParams();
  for (const name of FILTERS) if (filter.get(name)) query.set(name, filter.get(name) ?? "");
  const [, , seconds] = TIMES.find(([name]) => name === filter.get("time")) ?? [];
  if (seconds) query.set("since", String(Math.floor(Date.now() / 1000 - seconds)));
  return query;
}

async function load(/** @type {string} */ after) {
  isLoading = true;
  const mine = (asked += 1);
  const query = wantedQuery();
  if (filter.get("sort")) query.set("sort", filter.get("sort") ?? "");
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

function loadTotals() {
  const mine = asked;
  totalsAt = Date.now();
  get(`v1/runs/totals?${wantedQuery()}`).then(
    (found) => {
      if (mine !== asked) return;
      totals = found;
      schedule();
    },
    () => (totals = null), // the list says why
  );
}

/** @param {string} event @param {any} data */
export function onFeed(event, data) {
  if (event === "back") load("");
  if (event === "back" || (event === "run" && Date.now() - hourAt > 60_000)) loadHour();
  if (event === "back" || (event === "run" && Date.now() - totalsAt > (totals?.runs > 1000 ? 60_000 : 10_000))) loadTotals();
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
  if ((has("sort") && has("sort") !== "newest") || has("q") || has("until")) return false;
  for (const name of ["model", "key", "state"]) if (has(name) && has(name) !== row[name]) return false;
  if (has("tool") && !row.tools.includes(has("tool"))) return false;
  if (has("finding") && !row.findings.includes(has("finding"))) return false;
  if (has("provider") && row.deployment.split("/")[0] !== has("provider")) return false;
  const outcomes = has("tool") ? [row.outcomes[has("tool")] ?? {}] : Object.values(row.outcomes);
  if (has("outcome") && !outcomes.some((each) => has("outcome") in each)) return false;
  if (has("since") && row.began < Number(has("since"))) return false;
  return has("odd") !== "1" || row.odd;
}

function schedule() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(draw);
}

function setFilter(/** @type {Event} */ event) {
  const field = /** @type {HTMLInputElement} */ (event.target);
  const value = field.type === "checkbox" ? (field.checked ? "1" : "") : field.value.trim();
  if (field.name === "time") for (const name of ["since", "until"]) filter.delete(name);
  if (value && !(field.name === "sort" && value === "newest")) filter.set(field.name, value);
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
    html`<label>${label} <input name=${name} .value=${filter.get(name) ?? ""} size="12" list="of-${name}" autocomplete="off" /></label>
      <datalist id="of-${name}">${(names[name] ?? []).map((each) => html`<option value=${each}></option>`)}</datalist>`;
  render(
    html`<form class="filters" aria-label="Filters" @change=${setFilter} @submit=${(/** @type {Event} */ e) => e.preventDefault()}>
        <label class="search">Search <input type="search" name="q" .value=${filter.get("q") ?? ""} placeholder="in questions, answers, arguments, names" size="30" /></label>
        <label>Time ${times()}</label>
        <label>Model ${select("model", [...new Set([...models, ...(names.model ?? [])])])}</label>
        <label>State ${select("state", STATES)}</label>
        ${text("key", "Key")} ${text("tool", "Tool")} ${text("outcome", "Outcome")} ${text("finding", "Finding")}
        <label>Sort <select name="sort">${ORDERS.map((each) => html`<option value=${each} ?selected=${each === (filter.get("sort") ?? "newest")}>${each} first</option>`)}</select></label>
        <label class="check"><input type="checkbox" name="odd" .checked=${filter.get("odd") === "1"} /> problems only</label>
        ${filter.size ? html`<a href="#/runs">Clear</a>` : nothing}
        ${fresh.size ? html`<button type="button" class="fresh" @click=${showFresh}>${fresh.size} new</button>` : nothing}
      </form>
      ${hour?.data.length && !filter.size ? strip() : nothing}
      ${totals?.runs ? sums() : nothing}
      <div @mouseenter=${under(true)} @mouseleave=${under(false)}>
        ${table("Runs", ["Ending", "Began", "Question and tools", "Model", "Key", "#Turns / calls", "#Took", "#Tokens in + out", "#Cost"], repeat(rows, (row) => row.id, line), "runs dense")}
      </div>
      ${rows.length ? nothing : html`<p class="empty" role="status">${emptiness()}</p>`}
      ${next && rows.length < MOST ? html`<button type="button" class="quiet" ?disabled=${isLoading} @click=${() => load(next)}>${rows.length ? `Load ${PAGE} more` : "Look further"}</button>` : nothing}
      <p><small>j and k move, Enter opens. Problems: an error, a broken or failed call, an attempt that failed, or an end without an answer. A broken call was never run.</small></p>`,
    root,
  );
}

/** What the runs of the filter come to. */
function sums() {
  const parts = [
    `${totals.more ? "the newest " : ""}${format.many(totals.runs, "run")}`,
    totals.failed && `${format.count(totals.failed)} failed`,
    totals.broken_calls && `${format.many(totals.broken_calls, "broken call")}`,
    totals.failed_calls && `${format.many(totals.failed_calls, "failed call")}`,
    totals.p50 !== null && `p50 ${format.seconds(totals.p50)}, p95 ${format.seconds(totals.p95)}`,
    `${format.short(totals.tokens_in)} + ${format.short(totals.tokens_out)} tokens`,
    format.cost(totals.cost, totals.unpriced_runs),
  ];
  return html`<p class="sums" role="status">${parts.filter(Boolean).map((each) => html`<span>${each}</span>`)}</p>`;
}

/** The choice of a time, and the one that a link brought. */
function times() {
  const [since, until] = ["since", "until"].map((name) => Number(filter.get(name)));
  const brought = since || until ? `${since ? format.moment(since) : "…"} – ${until ? format.moment(until) : "now"}` : "";
  const time = brought ? "brought" : (filter.get("time") ?? "");
  return html`<select name="time"><option value="" ?selected=${!time}>any</option>
    ${brought ? html`<option value="brought" selected>${brought}</option>` : nothing}
    ${TIMES.map(([name, word]) => html`<option value=${name} ?selected=${name === time}>${word}</option>`)}</select>`;
}

function emptiness() {
  if (isLoading) return "Loading …";
  if (refused) return refused;
  const wanted = FILTERS.filter((name) => filter.get(name)).map((name) => {
    const value = filter.get(name) ?? "";
    if (name === "q") return `“${value}”`;
    return `${name} ${name === "since" || name === "until" ? format.moment(Number(value)) : value}`;
  });
  if (filter.get("time")) wanted.push(TIMES.find(([name]) => name === filter.get("time"))?.[1] ?? "");
  if (wanted.length) return `No run matches ${wanted.join(", ")}.${next ? " Older ones may." : ""}${filter.get("since") || filter.get("time") ? " Requests that are passed through without a tool are counted, and recorded when they fail (record.passed)." : ""}`;
  return "No runs yet. Requests that are passed through without a tool are recorded when they fail (record.passed).";
}

function select(/** @type {string} */ name, /** @type {string[]} */ known) {
  const value = filter.get(name) ?? "";
  const values = value && !known.includes(value) ? [...known, value] : known;
  return html`<select name=${name} .value=${value}>
    <option value="" ?selected=${!value}>any</option>
    ${values.map((each) => html`<option value=${each} ?selected=${each === value}>${each.replaceAll("_", " ")}</option>`)}
  </select>`;
}

/** A tool and what became of its calls. @param {string} name @param {Record<string, number>} outcomes */
function chip(name, outcomes) {
  const [tone, mark] = format.fate(Object.keys(outcomes));
  const count = Object.values(outcomes).reduce((sum, each) => sum + each, 0);
  const words = Object.entries(outcomes).map(([outcome, times]) => `${times > 1 ? `${times} ` : ""}${outcome.replaceAll("_", " ")}`).join(", ");
  return html`<span class="chip tone-${tone}" title="${name}: ${words || "under way"}">${icon(mark)} ${name || "(no name)"}${count > 1 ? html` <b>×${count}</b>` : nothing}<span class="visually-hidden">, ${words}</span></span>`;
}

function line(row, /** @type {number} */ place) {
  const [mark, word, tone] = format.ending(row);
  const took = row.state === "under_way" ? Date.now() / 1000 - row.began : row.seconds;
  const odd = [
    row.error,
    row.attempts > row.turns && row.turns ? format.many(row.attempts - row.turns, "failed attempt") : "",
    ...row.findings,
  ].filter(Boolean);
  return html`<tr class=${place === chosen ? "chosen" : ""}>
    <td class="state tone-${tone}"><a href="#/run/${encodeURIComponent(row.id)}">${icon(mark)} ${word}</a></td>
    <td><time datetime=${new Date(row.began * 1000).toISOString()}>${format.moment(row.began)}</time></td>
    <td class="what">${row.question ? html`<span class="question" title=${row.question}>${row.question}</span>` : nothing}
      ${row.tools.map((/** @type {string} */ name) => chip(name, row.outcomes?.[name] ?? {}))}
      ${row.replay_of ? html`<small>a replay</small>` : nothing}
      ${odd.length ? html`<small class="odd">${odd.join(" · ")}</small>` : nothing}</td>
    <td class="by">${row.model || row.route}${row.deployment && row.deployment !== row.model ? html` <small>${row.deployment}</small>` : nothing}</td>
    <td class="by">${row.key}</td>
    <td class="number more">${row.turns} / ${row.calls + row.broken_calls}</td>
    <td class="number took">${format.seconds(took)}${row.first_seconds === null ? nothing : html`<small title="until the first words">${format.seconds(row.first_seconds)} to first</small>`}</td>
    <td class="number tokens">${format.count(row.tokens_in)} + ${format.count(row.tokens_out)}</td>
    <td class="number">${row.turns && row.route !== "tool" && row.route !== "mcp" ? format.money(row.cost) : "–"}</td>
  </tr>`;
}
