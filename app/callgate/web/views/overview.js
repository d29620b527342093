// @ts-check
// The first page: what was asked, what came of it, what it cost and how long it took, in the last day, week or month.

import { html, nothing, render } from "../lit.js";
import { get } from "../api.js";
import * as format from "../format.js";
import { bars, lines, size, spark } from "./charts.js";
import { fail, table } from "./shared.js";

export const title = "Overview";

const PERIODS = { 1: "24 hours", 7: "7 days", 30: "30 days" };
const TONES = ["s0", "s1", "s2", "s3", "s4", "s5"];
/** So often, at most, it is asked for again while runs end. */
const PATIENCE = 5000;

/** @type {HTMLElement} */ let root;
/** @type {any} */ let stats = null;
let days = 1;
let refused = "";
let asked = 0;
let askedAt = 0;
/** @type {ReturnType<typeof setTimeout> | undefined} */ let soon;

/** @param {HTMLElement} main @param {string[]} _ @param {URLSearchParams} query */
export function show(main, _, query) {
  root = main;
  const wanted = Number(query.get("days") ?? 1);
  if (wanted !== days) stats = null;
  days = wanted in PERIODS ? wanted : 1;
  load();
  draw();
  return () => {
    asked += 1;
    clearTimeout(soon);
    soon = undefined;
  };
}

/** @param {string} event @param {any} data */
export function onFeed(event, data) {
  if (event === "back" || event === "who") load();
  if (event !== "run" || data.state === "under_way" || soon !== undefined) return;
  soon = setTimeout(load, Math.max(askedAt + PATIENCE - Date.now(), 300));
}

async function load() {
  clearTimeout(soon);
  soon = undefined;
  askedAt = Date.now();
  const mine = (asked += 1);
  try {
    const answer = await get(`v1/stats?days=${days}`);
    if (mine !== asked) return;
    stats = answer;
    refused = "";
  } catch (failure) {
    if (mine !== asked) return;
    refused = /** @type {Error} */ (failure).message;
    if (/** @type {any} */ (failure).status === 401) fail(failure);
  }
  draw();
}

/** @param {Record<string, string>} filter @param {number} [place] of a bar; the whole time without */
function runs(filter, place) {
  const since = place === undefined ? stats.since : stats.since + place * stats.step;
  const until = place === undefined ? undefined : since + stats.step;
  return `#/runs?${new URLSearchParams({ ...filter, since: String(since), ...(until && { until: String(until) }) })}`;
}

function draw() {
  const period = html`<nav class="period" aria-label="Time">${Object.entries(PERIODS).map(([value, name]) => html`<a href="#/overview?days=${value}" aria-current=${Number(value) === days ? "page" : nothing}>${name}</a>`)}</nav>`;
  if (!stats) {
    render(html`${period}<p class="empty" role="status">${refused || "Loading …"}</p>`, root);
    return;
  }
  render(
    html`<div class="head">${period}<p><small>${whose()}</small></p></div>
      ${refused ? html`<p class="odd" role="alert">${refused}</p>` : nothing}
      ${stats.totals.requests || stats.tools.length ? figures() : empty()}`,
    root,
  );
  size(root);
}

/** Whose figures these are, since when, and how long they stay. */
function whose() {
  const since = stats.counted_since && stats.counted_since > stats.since ? `counted since ${format.moment(stats.counted_since)}` : "";
  const kept = stats.kept === "memory" ? "in memory until the server ends: with a data_dir they stay" : "";
  return [stats.key === null ? "" : `of key ${stats.key} alone`, since, kept].filter(Boolean).join(" · ");
}

const empty = () => html`<section class="nothing" role="status"><h2>Nothing was asked in this time</h2>
  <p>Every request that this server answers is counted here: how it ended, what it cost, how long it took, and which calls of tools were broken and not run.</p>
  <p><a href="#/playground">Ask something in the Playground</a>, or send a request to <code>${new URL("v1/chat/completions", document.baseURI)}</code>.</p></section>`;

function figures() {
  const { totals } = stats;
  const ended = stats.tools.reduce((sum, tool) => sum + tool.calls, 0);
  const failed = stats.tools.reduce((sum, tool) => sum + tool.failed_calls, 0);
  const broken = stats.flaws.reduce((sum, row) => sum + row.count, 0);
  const cards = [
    ["Requests", format.count(totals.requests), "", runs({})],
    ["Failed", format.count(totals.failed), format.share(totals.failed, totals.requests), runs({ state: "failed" })],
    ["Broken calls", format.count(broken), `in ${format.many(totals.broken_runs, "run")}`, runs({ odd: "1" })],
    ["Tool calls", format.count(ended), ended ? `${format.share(ended - failed, ended)} returned` : "", runs({ outcome: "returned" })],
    ["Took", format.seconds(totals.p50), `p95 ${format.seconds(totals.p95)}`, runs({ sort: "slowest" })],
    ["First words", format.seconds(totals.first_p50), `p95 ${format.seconds(totals.first_p95)}`, runs({})],
    ["Tokens", format.short(totals.tokens_in + totals.tokens_out), `${format.short(totals.tokens_in)} in, ${format.short(totals.tokens_out)} out`, runs({ sort: "largest" })],
    ["Cost", format.money(totals.cost), totals.unpriced_requests ? `+ ${format.many(totals.unpriced_requests, "request")} without a price` : "", runs({ sort: "dearest" })],
  ];
  return html`<ul class="cards">${cards.map(([name, value, more, href]) => html`<li><a href=${href}><small>${name}</small><b>${value}</b><small>${more}</small></a></li>`)}</ul>
    <div class="charts">${requests()} ${latency()} ${cost()} ${flaws()}</div>
    ${tools()} ${models()}
    <div class="pair">${flawsOfModels()}<div>${providers()} ${keys()}</div></div>
    <p><small>Times are those of recorded runs, out of a histogram: right to about a fifth. Requests that are passed through without a tool are counted, and listed in Runs only when they fail (record.passed). A broken call was never run. Days are those of UTC.</small></p>`;
}

/** @returns {{moments: string[], ticks: string[]}} what the bars stand for */
function axis() {
  const places = stats.requests.map((_, place) => new Date((stats.since + place * stats.step) * 1000));
  const day = (/** @type {Date} */ date) => date.toLocaleDateString([], { month: "short", day: "numeric", ...(stats.step === 86_400 && { timeZone: "UTC" }) });
  const hour = (/** @type {Date} */ date) => date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  const moments = places.map((date) => (stats.step === 86_400 ? day(date) : `${day(date)} ${hour(date)}`));
  const short = places.map(days === 1 ? hour : day);
  const count = Math.min(6, short.length);
  const ticks = [...Array(count).keys()].map((at) => short[Math.round((at * (short.length - 1)) / Math.max(count - 1, 1))]);
  return { moments, ticks };
}

function requests() {
  const broken = stats.broken_runs.map((/** @type {number} */ value, /** @type {number} */ place) => Math.min(value, stats.requests[place] || value));
  const ok = stats.requests.map((/** @type {number} */ value, /** @type {number} */ place) => Math.max(value - stats.failed[place] - broken[place], 0));
  return bars({
    title: "Requests",
    ...axis(),
    show: (value) => format.short(value ?? 0),
    series: [
      { name: "answered", tone: "of-ok", values: ok, href: (place) => runs({}, place) },
      { name: "with broken calls", tone: "of-broken", values: broken, href: (place) => runs({ odd: "1" }, place) },
      { name: "failed", tone: "of-bad", values: stats.failed, href: (place) => runs({ state: "failed" }, place) },
    ],
  });
}

function latency() {
  const href = (/** @type {number} */ place) => runs({ sort: "slowest" }, place);
  return lines({
    title: "How long it took",
    ...axis(),
    show: format.seconds,
    note: stats.totals.p50 === null ? "No run was recorded in this time: only failed requests are, where no tool is on offer (record.passed)." : "",
    series: [
      { name: "p95", tone: "s1", values: stats.p95, href },
      { name: "p50", tone: "s0", values: stats.p50, href },
      { name: "first words, p50", tone: "s2 dashed", values: stats.first_p50, href },
    ],
  });
}

/** The largest, and what is left as one. @param {any[]} rows @param {(row: any) => number[]} values @param {(row: any) => string} name @param {(row: any, place: number) => string} href @returns {import("./charts.js").Series[]} */
function largest(rows, values, name, href) {
  const few = rows.slice(0, TONES.length - 1);
  const others = rows.slice(TONES.length - 1);
  /** @type {import("./charts.js").Series[]} */
  const series = few.map((row, at) => ({ name: name(row), tone: TONES[at], values: values(row), href: (place) => href(row, place) }));
  if (others.length) {
    const sums = stats.requests.map((_, /** @type {number} */ place) => others.reduce((sum, row) => sum + values(row)[place], 0));
    series.push({ name: `${others.length} others`, tone: TONES[TONES.length - 1], values: sums, href: (place) => runs({}, place) });
  }
  return series;
}

function cost() {
  const rows = stats.models.filter((model) => model.cost > 0).sort((one, other) => other.cost - one.cost);
  return bars({
    title: "Cost by model",
    ...axis(),
    show: (value) => format.money(value ?? 0),
    note: rows.length ? "" : "No model that was asked has a price (model_info, or litellm's list).",
    series: largest(rows, (row) => row.bars.cost, (row) => row.name, (row, place) => runs({ model: row.name, sort: "dearest" }, place)),
  });
}

function flaws() {
  /** @type {Map<string, any>} */ const byFlaw = new Map();
  for (const row of stats.flaws) {
    const known = byFlaw.get(row.flaw) ?? { flaw: row.flaw, bars: stats.requests.map(() => 0) };
    known.bars = known.bars.map((/** @type {number} */ sum, /** @type {number} */ place) => sum + row.bars[place]);
    byFlaw.set(row.flaw, known);
  }
  const rows = [...byFlaw.values()];
  return bars({
    title: "Broken calls",
    ...axis(),
    show: (value) => format.count(value ?? 0),
    note: rows.length ? "" : "No call was broken.",
    series: largest(rows, (row) => row.bars, (row) => row.flaw.replaceAll("_", " "), (row, place) => runs({ outcome: row.flaw }, place)),
  });
}

function flawsOfModels() {
  const rows = stats.flaws.slice(0, 10).map((row) => {
    const href = runs({ model: row.model, outcome: row.flaw });
    return html`<tr><td>${row.model || "–"}</td><td>${row.flaw.replaceAll("_", " ")}</td><td class="number"><a href=${href}>${format.count(row.count)}</a></td>
      <td>${spark(`Broken calls of ${row.model}, ${row.flaw}: ${row.count}`, href, row.bars.map(() => 0), row.bars)}</td></tr>`;
  });
  return html`<section><h2>Broken calls by model and flaw</h2>${table("Broken calls by model and flaw", ["Model", "Flaw", "#Calls", "Over time"], rows, "dense")}
    ${rows.length ? nothing : html`<p class="empty">No call was broken in this time. One that is, is never run, and its model is told what was wrong.</p>`}</section>`;
}

/** @param {number} part @param {number} all @param {string} href */
const few = (part, all, href) => (part ? html`<a class="odd" href=${href}>${format.count(part)}</a> <small>${format.share(part, all)}</small>` : html`<small>–</small>`);

function tools() {
  const rows = stats.tools.map((tool) => {
    const filter = { tool: tool.name };
    const bad = tool.bars.failed.map((/** @type {number} */ value, /** @type {number} */ place) => value + tool.bars.broken[place]);
    const all = tool.bars.calls.map((/** @type {number} */ value, /** @type {number} */ place) => value + tool.bars.broken[place]);
    return html`<tr><td><a href=${runs(filter)}>${tool.name || "(no name)"}</a></td>
      <td>${spark(`Calls of ${tool.name} over time`, runs(filter), all, bad)}</td>
      <td class="number">${format.count(tool.calls)}</td>
      <td class="number">${tool.calls ? format.share(tool.calls - tool.failed_calls, tool.calls) : "–"}</td>
      <td class="number">${few(tool.failed_calls, tool.calls, runs({ ...filter, odd: "1" }))}</td>
      <td class="number">${few(tool.broken_calls, tool.calls + tool.broken_calls, runs({ ...filter, odd: "1" }))}</td>
      <td class="number">${format.seconds(tool.p50)}</td><td class="number"><a href=${runs({ ...filter, sort: "slowest" })}>${format.seconds(tool.p95)}</a></td></tr>`;
  });
  return html`<h2>Tools</h2>${table("Tools", ["Tool", "Calls over time", "#Calls", "#Returned", "#Failed", "#Broken", "#p50", "#p95"], rows, "dense")}
    ${rows.length ? nothing : html`<p class="empty">No tool was called. A model is offered those that its entry names (<code>tools: ["*"]</code>).</p>`}`;
}

function models() {
  const rows = stats.models.map((model) => {
    const filter = { model: model.name };
    const cooling = stats.cooling.filter((each) => each.model === model.name);
    return html`<tr><td><a href=${runs(filter)}>${model.name || "–"}</a>${cooling.map((each) => html`<small class="wait">${each.deployment} is cooling down for ${format.seconds(each.seconds)}</small>`)}</td>
      <td>${spark(`Requests of ${model.name} over time`, runs(filter), model.bars.requests, model.bars.failed)}</td>
      <td class="number">${format.count(model.requests)}</td>
      <td class="number">${few(model.failed, model.requests, runs({ ...filter, state: "failed" }))}</td>
      <td class="number">${few(model.broken_runs, model.requests, runs({ ...filter, odd: "1" }))}</td>
      <td class="number">${format.seconds(model.first_p50)}</td>
      <td class="number">${format.seconds(model.p50)}</td><td class="number"><a href=${runs({ ...filter, sort: "slowest" })}>${format.seconds(model.p95)}</a></td>
      <td class="number">${format.short(model.tokens_in)} + ${format.short(model.tokens_out)}</td>
      <td class="number">${model.cost || !model.unpriced_requests ? format.money(model.cost) : "no price"}</td></tr>`;
  });
  return html`<h2>Models</h2>${table("Models", ["Model", "Requests over time", "#Requests", "#Failed", "#With broken calls", "#First words", "#p50", "#p95", "#Tokens in + out", "#Cost"], rows, "dense")}`;
}

function providers() {
  const rows = stats.providers.map((provider) => {
    const cooling = stats.cooling.filter((each) => each.deployment.split("/")[0] === provider.name).length;
    return html`<tr><td><a href=${runs({ provider: provider.name })}>${provider.name || "–"}</a>${cooling ? html`<small class="wait">${format.many(cooling, "deployment")} cooling down</small>` : nothing}</td>
      <td>${spark(`Answers of ${provider.name} over time`, runs({ provider: provider.name }), provider.bars.answers.map((/** @type {number} */ value, /** @type {number} */ place) => value + provider.bars.failed[place]), provider.bars.failed)}</td>
      <td class="number">${format.count(provider.answers)}</td>
      <td class="number">${few(provider.failed_attempts, provider.answers + provider.failed_attempts, runs({ odd: "1" }))}</td>
      <td class="number">${format.seconds(provider.first_p50)}</td><td class="number">${format.seconds(provider.p95)}</td></tr>`;
  });
  return html`<section><h2>Providers</h2>${table("Providers", ["Provider", "Attempts over time", "#Answers", "#Failed attempts", "#First words", "#p95"], rows, "dense")}
    ${rows.length ? nothing : html`<p class="empty">No turn of a recorded run was answered in this time.</p>`}</section>`;
}

function keys() {
  const most = Math.max(...stats.keys.map((key) => key.cost), 0);
  const rows = stats.keys.map(
    (key) => html`<tr><td><a href=${runs({ key: key.name })}>${key.name}</a></td>
      <td class="number">${format.count(key.requests)}</td><td class="number">${few(key.failed, key.requests, runs({ key: key.name, state: "failed" }))}</td>
      <td class="number">${format.short(key.tokens_in)} + ${format.short(key.tokens_out)}</td>
      <td class="number">${format.money(key.cost)}${key.unpriced_requests ? html`<small>+ ${format.many(key.unpriced_requests, "request")} without a price</small>` : nothing}</td>
      <td>${most ? html`<a class="meter" href=${runs({ key: key.name, sort: "dearest" })} aria-label="Cost of ${key.name}: ${format.money(key.cost)}"><i data-high=${key.cost / most}></i></a>` : nothing}</td></tr>`,
  );
  return html`<section><h2>Keys</h2>${table("Keys", ["Key", "#Requests", "#Failed", "#Tokens in + out", "#Cost", "Of the most"], rows, "dense")}</section>`;
}
