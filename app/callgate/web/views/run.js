// @ts-check
// One run: its attempts, turns and calls on a line of time, and what each call was.

import { html, nothing, render } from "../lit.js";
import { events, get, send } from "../api.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { decisionOf, inWords, markOf, messagesOf, saidOf, textOf, toldOf, turnsOf, whyNoReplay, wordOf, wordsOf } from "./run_facts.js";
import { beside } from "./runs.js";
import { copyButton, download, fail, notice, question, table } from "./shared.js";

export const title = "Run";

const TABS = ["waterfall", "conversation", "events", "json"];
const SIDES = ["as written", "parsed", "sent to the model", "wire"];

/** @type {HTMLElement} */ let root;
/** @type {any} */ let run = null;
let id = "";
let tab = "waterfall";
let chosen = "";
let side = SIDES[0];
let message = "";
/** @type {Map<number, string>} */ let wires = new Map();
/** @type {AbortController | null} */ let open = null;
let frame = 0;

/** @param {HTMLElement} main @param {string[]} path @param {URLSearchParams} query */
export function show(main, path, query) {
  root = main;
  if (path[0] !== id || run?.state === "under_way") {
    run = null;
    wires = new Map();
  }
  id = path[0] ?? "";
  tab = TABS.includes(query.get("tab") ?? "") ? /** @type {string} */ (query.get("tab")) : "waterfall";
  chosen = query.get("call") ?? "";
  side = SIDES.includes(query.get("side") ?? "") ? /** @type {string} */ (query.get("side")) : SIDES[0];
  message = "";
  load();
  draw();
  document.addEventListener("keydown", onKey);
  return () => {
    document.removeEventListener("keydown", onKey);
    open?.abort();
    cancelAnimationFrame(frame);
  };
}

const at = (/** @type {string} */ rest = "") => `v1/runs/${encodeURIComponent(id)}${rest}`;

async function load() {
  open?.abort();
  const controller = (open = new AbortController());
  try {
    if (!run) run = await get(at("?content=1"), { signal: controller.signal });
    if (run.state === "under_way") {
      schedule();
      await follow(controller.signal);
    }
  } catch (failure) {
    if (controller.signal.aborted) return;
    message = /** @type {Error} */ (failure).message;
    if (/** @type {any} */ (failure).status === 401) fail(failure);
  }
  if (!controller.signal.aborted) schedule();
}

async function follow(/** @type {AbortSignal} */ signal) {
  const response = await send(at(), { headers: { accept: "text/event-stream" }, signal });
  run.events = [];
  for await (const { event, data } of events(response)) {
    if (event === "event") run.events.push(JSON.parse(data));
    schedule();
  }
  if (!signal.aborted) run = await get(at("?content=1"), { signal });
}

function schedule() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(draw);
}

const link = (/** @type {Record<string, string>} */ more) => {
  const query = new URLSearchParams({ tab, ...(chosen && { call: chosen }), ...(side !== SIDES[0] && { side }), ...more });
  return `#/run/${encodeURIComponent(id)}?${query}`;
};

function draw() {
  if (!run) {
    render(html`<p class="empty" role="status">${message || "Loading …"}</p>`, root);
    return;
  }
  const [mark, word, tone] = format.ending(run);
  const why = whyNoReplay(run);
  const turns = turnsOf(run);
  const said = saidOf(run, turns);
  const lost = run.error ? turns.flatMap((turn) => turn.attempts).findLast((each) => each.reason) : undefined;
  render(
    html`<h2>${neighbours()}<a href=${beside(id)?.list ?? "#/runs"}>Runs</a> ${icon("next")} ${run.id}</h2>
      <p class="summary facts">
        <span class="state tone-${tone}">${icon(mark)} ${word}</span>
        ${[
          format.seconds(run.seconds),
          run.turns && format.many(run.turns, "turn"),
          run.tokens_in + run.tokens_out && `${format.count(run.tokens_in)}${format.cache(run.tokens_cached, run.tokens_cache_written)} + ${format.count(run.tokens_out)} tokens in + out`,
          run.turns && format.money(run.cost),
          run.finish_reason && `finish_reason ${run.finish_reason}`,
        ]
          .filter(Boolean)
          .map((each) => html`<span>${each}</span>`)}
      </p>
      <p>${inWords(run, turns)}</p>
      ${said.length ? html`<dl class="said">${said.map(([who, words]) => html`<dt>${who}</dt><dd tabindex="0">${words}</dd>`)}</dl>` : nothing}
      <p><small>
        key ${run.key || "–"} · model ${run.model || "–"}${run.deployment ? ` → ${run.deployment}` : ""} · ${format.moment(run.began)} · ${run.request_id} · process ${run.process}
        ${run.trace_id ? html` · trace ${run.trace_id}` : nothing} · texts ${format.keptWords(run.kept)}
        ${run.replay_of ? html` · replay of ${runLink(run.replay_of)} (${compareLink(run.replay_of, run.id)})` : nothing}
        ${(run.replays ?? []).length
          ? html` · replayed as ${run.replays.map((/** @type {string} */ each) => html`${runLink(each)} (${compareLink(run.id, each)}) `)}`
          : nothing}
      </small></p>
      ${message ? html`<p class="odd" role="alert">${message}</p>` : nothing}
      ${run.error ? html`<p class="odd">${run.status} ${run.error}${lost ? `: ${lost.detail}` : ""}</p>` : nothing}
      ${guarded().map((line) => html`<p class="odd">${line}</p>`)}
      ${(run.findings ?? []).length ? html`<p class="odd">findings: ${run.findings.join(", ")}</p>` : nothing}
      <menu>
        ${TABS.map((each) => html`<li><a href=${link({ tab: each })} aria-current=${each === tab ? "true" : nothing}>${each}</a></li>`)}
        <li><select aria-label="Export" @change=${save}>
          <option value="">Export …</option>
          ${["json", "curl", "recording", "otlp"].map((as) => html`<option>${as}</option>`)}
        </select></li>
        <li><button type="button" @click=${replay} ?disabled=${why !== ""}>Replay</button></li>
        <li><button type="button" class="quiet" @click=${compareWith}>Compare</button></li>
        <li><button type="button" class="quiet" @click=${remove}>Delete</button></li>
        ${why ? html`<li><small>No replay: ${why}.</small></li>` : nothing}
      </menu>
      <div class=${chosen && tab === "waterfall" ? "split" : ""}>
        ${tab === "waterfall" ? waterfall() : tab === "conversation" ? conversation() : tab === "events" ? eventList() : json()}
        ${chosen && tab === "waterfall" ? callDetail() : nothing}
      </div>`,
    root,
  );
  for (const bar of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("[data-from]"))) {
    bar.style.setProperty("--from", bar.dataset.from ?? "0");
    bar.style.setProperty("--to", bar.dataset.to ?? "0");
  }
  const axis = /** @type {HTMLElement | null} */ (root.querySelector("[data-tick]"));
  axis?.style.setProperty("--tick", axis.dataset.tick ?? "1");
}

/** What guardrails did, beside letting things pass. */
function guarded() {
  const judged = (run.events ?? []).filter((/** @type {any} */ event) => event.kind === "guardrail_judged" && event.facts.verdict !== "passed");
  const lines = judged.map(
    (/** @type {any} */ { facts, turn }) =>
      `guardrail ${facts.hook}: ${facts.point}${facts.name ? ` of ${facts.name}` : ""} in turn ${Math.max(turn ?? 0, 0) + 1} ${facts.verdict.replace("_", " ")}${(facts.kinds ?? []).length ? ` (${facts.kinds.join(", ")})` : ""}`,
  );
  return [...new Set(lines)];
}

/** The runs above and below this one in the list that it was chosen from, or in the list of all. */
function neighbours() {
  const known = beside(id);
  const button = (/** @type {"above" | "below"} */ side, /** @type {string} */ label, /** @type {import("../icons.js").Icon} */ mark) =>
    known && !known[side]
      ? html`<button type="button" class="quiet" disabled aria-label=${label}>${icon(mark)}</button>`
      : html`<button type="button" class="quiet" title=${label} aria-label=${label} @click=${() => go(side)}>${icon(mark)}</button>`;
  return html`<span class="beside">${button("above", "The run above in the list", "previous")} ${button("below", "The run below in the list", "next")}</span>`;
}

async function go(/** @type {"above" | "below"} */ side) {
  let other = beside(id)?.[side];
  if (!other) {
    const sort = side === "above" ? "oldest" : "newest";
    const found = await get(`v1/runs?${new URLSearchParams({ sort, limit: "1", after: `${run.began}~${id}` })}`).catch(fail);
    other = found?.data[0]?.id;
  }
  if (other) location.hash = `#/run/${encodeURIComponent(other)}${tab === "waterfall" ? "" : `?tab=${tab}`}`;
  else notice(side === "above" ? "No run is newer." : "No older run is kept.");
}

const runLink = (/** @type {string} */ other) => html`<a href="#/run/${encodeURIComponent(other)}">${other}</a>`;
const compareLink = (/** @type {string} */ one, /** @type {string} */ other) =>
  html`<a href="#/compare/${encodeURIComponent(one)}/${encodeURIComponent(other)}">compare</a>`;

async function save(/** @type {Event} */ event) {
  const field = /** @type {HTMLSelectElement} */ (event.target);
  const as = field.value;
  field.value = "";
  if (!as) return;
  try {
    const response = await send(at(`/export?as=${as}`));
    download(`${id}.${as === "curl" ? "sh" : "json"}`, await response.text(), response.headers.get("content-type") ?? "text/plain");
  } catch (failure) {
    fail(failure);
  }
}

async function replay() {
  const models = (await get("v1/models").catch(() => ({ data: [] }))).data;
  const turns = turnsOf(run).filter((turn) => !turn.choice);
  const given = await question(
    "Replay",
    html`<label>Model <select name="model">
        <option value="">the same (${run.model})</option>
        ${models.map((each) => html`<option>${each.id}</option>`)}
      </select></label>
      <label>From <select name="from_turn">
        ${turns.map((turn) => html`<option value=${turn.index}>${turn.index ? `turn ${turn.index + 1}, with what came before it as it was` : "the beginning"}</option>`)}
      </select></label>
      <label>Calls <select name="tools">
        <option value="recorded">get their recorded results; nothing runs</option>
        <option value="run">run again; what needs approval asks for it</option>
      </select></label>
      <p><small>The model is asked again, which costs what it costs.</small></p>`,
    "Ask again",
  );
  if (!given) return;
  if (given.tools === "run" && !confirm("Tools will run again and may change things. Go on?")) return;
  notice("Asked again …");
  const mine = id;
  try {
    const json = { tools: given.tools, from_turn: Number(given.from_turn || 0), ...(given.model && { model: given.model }) };
    const made = await get(at("/replay"), { method: "POST", json, headers: { "x-callgate-record": "own" } });
    if (made.stopped) notice(`The replay was stopped: ${made.stopped}`);
    if (id === mine) run = null; // the next look at it shows the link
    location.hash = `#/run/${encodeURIComponent(made.run)}`;
  } catch (failure) {
    fail(failure);
  }
}

async function compareWith() {
  const given = await question("Compare", html`<label>With run <input name="other" required placeholder="run_…" value=${run.replays?.[0] ?? run.replay_of ?? ""} /></label>`, "Compare");
  if (given) location.hash = `#/compare/${encodeURIComponent(id)}/${encodeURIComponent(given.other.trim())}`;
}

async function remove() {
  if (!confirm("Delete what was recorded of this run?")) return;
  try {
    await get(at(), { method: "DELETE" });
    run = null;
    location.hash = "#/runs";
  } catch (failure) {
    fail(failure);
  }
}

function waterfall() {
  const all = turnsOf(run);
  const whole = Math.max(run.seconds ?? 0, ...all.map((turn) => turn.to), 0.001);
  const bar = (/** @type {string} */ what, /** @type {number} */ from, /** @type {number} */ to) =>
    html`<i class=${what} title="${what}: ${format.seconds(to - from)}" data-from=${Math.max(from, 0) / whole} data-to=${to / whole} data-ms=${((to - from) * 1000).toFixed(1)}></i>`;
  const row = (label, bars, /** @type {number} */ took, kind = "", hint = "") =>
    html`<div class="row ${kind && `of-${kind}`}" role="row"><span role="cell" title=${hint}>${label}</span><span class="track" role="cell">${bars}</span><span role="cell" class="number">${format.seconds(took)}</span></div>`;
  const [every, moments] = ticks(whole);
  return html`<div><section class="waterfall" role="table" aria-label="Waterfall" data-tick=${every / whole}>
      <div class="row axis" role="row"><span role="columnheader">part</span><span class="track" role="columnheader">${moments.map((moment) => html`<b data-from=${moment / whole}>${moment ? format.seconds(moment) : "0"}</b>`)}</span><span role="columnheader" class="number">took</span></div>
      ${all.map((turn) => {
        const isSilent = turn.answered === undefined && run.state !== "under_way"; // it failed before it said anything
        const spoke = turn.answered ?? turn.to;
        const first = isSilent || turn.facts?.first_seconds === undefined ? spoke : Math.min(turn.from + turn.facts.first_seconds, spoke);
        return html`${row(
          html`<b>turn ${turn.index + 1}${turn.choice ? ` · choice ${turn.choice + 1}` : ""}</b> <small>${turn.facts?.deployment ?? ""}</small>`,
          [bar("first", turn.from, first), isSilent ? nothing : bar("speaking", first, spoke), turn.to > spoke ? bar("calls", spoke, turn.to) : nothing, used(turn, whole)],
          turn.to - turn.from,
          "turn",
        )}
        ${turn.attempts.map((each) =>
          row(
            html`attempt ${each.number} ${each.deployment} <small class=${each.reason ? "odd" : ""}>${each.status || ""} ${each.reason ?? "answered"}${each.instead_of ? ` for ${each.instead_of}, cooling down` : ""}</small>`,
            [each.wait ? bar("waited", each.waitFrom, each.from) : nothing, bar(each.reason ? "attempt" : "first", each.from, each.to)],
            each.seconds,
            "attempt",
            each.detail ?? "",
          ),
        )}
        ${[...turn.calls.values()].map((call) =>
          row(
            html`<a href=${link({ call: call.id })} aria-current=${call.id === chosen ? "true" : nothing}>${markOf(call)} ${call.name ?? "(no name)"}</a> <small class=${call.verdict === "broken" ? "odd" : ""}>${wordOf(call)}</small>`,
            call.parts.map((part) => bar(part.what, part.from, part.to)),
            call.seconds,
            "call",
            wordOf(call),
          ),
        )}`;
      })}
    </section>
    ${all.length ? nothing : html`<p class="empty">${run.route === "chat" ? "No turn began." : "This request was passed through or failed before its first turn: it has none."}</p>`}
    <p class="legend"><small><i class="first"></i> until the first words <i class="speaking"></i> speaking <i class="tool"></i> tool <i class="waiting"></i> waiting for a person <i class="attempt"></i> failed attempt <i class="waited"></i> waited before the next${chosen || !all.some((turn) => turn.calls.size) ? "" : " · choose a call to see it as it was written, read and answered"}</small></p></div>`;
}

/** The moments of an axis, at round distances. @param {number} whole @returns {[number, number[]]} */
function ticks(whole) {
  const power = 10 ** Math.floor(Math.log10(whole / 4));
  const every = ([1, 2, 5, 10].find((step) => step * power >= whole / 5) ?? 10) * power;
  const moments = [...Array(Math.ceil(whole / every)).keys()].map((place) => place * every).filter((moment) => moment < whole * 0.93);
  return [every, [...moments, whole]];
}

/** What a turn used, beside its bar, or on it where there is no room. @param {any} turn @param {number} whole */
function used(turn, whole) {
  const usage = turn.facts?.usage;
  const tokens = usage?.prompt_tokens === undefined ? "" : format.tokens(usage).replace("tokens in + out", "tok");
  const cost = turn.facts?.cost === undefined ? "" : format.money(turn.facts.cost);
  if (!tokens && !cost) return nothing;
  const [from, to] = [turn.from / whole, turn.to / whole];
  const [side, at] = to < 0.6 ? ["after", to] : from > 0.4 ? ["ahead", from] : ["on", to];
  return html`<span class="cost ${side}" data-from=${at}>${[tokens, cost].filter(Boolean).join(" · ")}</span>`;
}

/** Texts that are not there have one reason, which is said once where all of them are gone. @param {string | undefined} kept */
const ifKept = (kept) => (kept === undefined && ["nothing", "aged_out"].includes(run.kept) ? nothing : text(kept));

/** @param {string | undefined} kept */
const text = (kept) => (kept === undefined ? html`<p class="empty">${format.whyNotKept(run.kept)}</p>` : html`<pre tabindex="0">${format.pretty(kept)}</pre>`);

function callDetail() {
  const [turn, call] = turnsOf(run).flatMap((each) => [...each.calls.values()].map((call) => [each, call])).find(([, call]) => call.id === chosen) ?? [];
  if (!call) return html`<section aria-label="Call" class="detail"><p class="empty">No such call in this run.</p></section>`;
  const written = textOf(run, turn, `call.${call.id}.arguments`);
  const shown = { "as written": () => asWritten(written), parsed: () => parsed(turn, call, written), "sent to the model": () => sent(turn, call), wire: () => wire(turn) };
  return html`<section aria-label="Call" class="detail">
    <h3>${besideCall()}<a class="close" href=${link({ call: "" })} aria-label="Close">${icon("cross")}</a>turn ${turn.index + 1} · ${call.name ?? "(no name)"} <small>${call.id}</small></h3>
    <p>${call.verdict === "broken" ? html`<b class="odd">${icon("cross")} broken: ${call.flaw}</b>` : html`${icon("check")} whole${call.owner === "client" ? ", the client's own" : ""}`}
      ${(call.repairs ?? []).length ? html` · repairs: ${call.repairs.join(", ")}` : nothing}
      ${call.outcome ? html` · ${call.outcome} in ${format.seconds(call.seconds)}` : nothing}
      ${call.approval ? html` · ${decisionOf(call) || "waits for approval"}` : nothing}
      ${(call.answers ?? []).map((/** @type {string} */ each) => html` · a person answered <code>${each}</code>`)}
      · finish_reason <code>${(turn.facts?.finish_reasons ?? []).join(", ") || "none"}</code>${turn.facts?.finish_reason_rewritten ? " (rewritten on the way)" : ""}</p>
    ${call.problem ? html`<dl>${Object.entries(call.problem).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>` : nothing}
    <menu>
      ${SIDES.map((each) => html`<li><a href=${link({ side: each })} aria-current=${each === side ? "true" : nothing}>${each}</a></li>`)}
      ${written === undefined ? nothing : html`<li>${copyButton(written, "Copy arguments")}</li>`}
    </menu>
    ${shown[/** @type {keyof typeof shown} */ (side)]()}
  </section>`;
}

/** The calls of the run, in their order. @returns {any[]} */
const allCalls = () => turnsOf(run).flatMap((turn) => [...turn.calls.values()]);

/** The calls before and after the chosen one. */
function besideCall() {
  const calls = allCalls();
  const place = calls.findIndex((call) => call.id === chosen);
  const to = (/** @type {any} */ call, /** @type {string} */ label, /** @type {import("../icons.js").Icon} */ mark) =>
    call ? html`<a class="close" href=${link({ call: call.id })} title=${label} aria-label=${label}>${icon(mark)}</a>` : nothing;
  return html`<span class="beside">${to(calls[place - 1], "The call before", "previous")}${to(calls[place + 1], "The call after", "next")}</span>`;
}

/** j and k go from call to call, as from run to run in the list. @param {KeyboardEvent} event */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !["j", "k"].includes(event.key) || tab !== "waterfall" || !run) return;
  if (event.target instanceof HTMLElement && event.target.closest("input, select, textarea, dialog")) return;
  const calls = allCalls();
  const place = calls.findIndex((call) => call.id === chosen);
  const next = calls[place < 0 ? 0 : place + (event.key === "j" ? 1 : -1)];
  if (next) location.hash = link({ call: next.id });
}

/** @param {string | undefined} written as the model wrote it, to the letter */
const asWritten = (written) => (written === undefined ? text(written) : html`<pre tabindex="0">${written}</pre>`);

function parsed(turn, call, /** @type {string | undefined} */ written) {
  if (call.verdict === "broken") return html`<p class="empty">Nothing was parsed, and nothing was run: the call was not whole.</p>`;
  const read = textOf(run, turn, `call.${call.id}.read`);
  return html`${text(read ?? written)}${read === undefined && written !== undefined ? html`<p><small>Parsed as it was written.</small></p>` : nothing}`;
}

function sent(turn, call) {
  const size = call.bytes === undefined ? "" : `${format.bytes(call.bytes)}${call.cut_bytes ? `, ${format.bytes(call.cut_bytes)} cut` : ""}`;
  if (call.owner === "client") return html`<p class="empty">The call went to the client, who answers it in a request of its own.</p>`;
  return html`${size ? html`<p><small>${size}</small></p>` : nothing}${text(toldOf(run, turn, call))}`;
}

function wire(turn) {
  const known = wires.get(turn.index);
  if (known === undefined) {
    wires.set(turn.index, "Loading …");
    get(at(`/wire/${turn.index}`))
      .then((answer) => wires.set(turn.index, answer.data.join("\n\n")))
      .catch((failure) => wires.set(turn.index, failure.message))
      .finally(schedule);
  }
  return html`<pre tabindex="0">${known ?? "Loading …"}</pre>`;
}

function conversation() {
  return html`<section aria-label="Conversation">
    ${messagesOf(run).length
      ? html`<div class="messages">${messagesOf(run).map((message) => html`<article class=${message.role}><h3>${message.role}</h3><p>${wordsOf(message)}</p></article>`)}</div>
        <details><summary>The request as JSON</summary>${text(run.content?.request)}</details>`
      : text(run.content?.request)}
    ${turnsOf(run).map((turn) => {
      const reasoning = textOf(run, turn, `turn.${turn.index}.reasoning`);
      const words = textOf(run, turn, `turn.${turn.index}.text`);
      return html`<article class="turn"><h3>Turn ${turn.index + 1}${turn.choice ? ` · choice ${turn.choice + 1}` : ""}</h3>
        ${reasoning === undefined ? nothing : html`<details><summary>Reasoning</summary><pre tabindex="0">${reasoning}</pre></details>`}
        ${words === undefined ? (turn.calls.size ? nothing : ifKept(words)) : html`<pre tabindex="0">${words}</pre>`}
        ${[...turn.calls.values()].map(
          (call) => html`<div class="call ${call.verdict === "broken" ? "broken" : call.outcome ? (call.outcome === "returned" ? "done" : "failed") : ""}"><p><b>${call.name ?? "(no name)"}</b> ${markOf(call)} <small>${wordOf(call)}</small></p>
            ${ifKept(textOf(run, turn, `call.${call.id}.arguments`))}
            ${call.owner === "client" || toldOf(run, turn, call) === undefined ? nothing : html`<p><small>sent to the model</small></p>${text(toldOf(run, turn, call))}`}</div>`,
        )}
      </article>`;
    })}
  </section>`;
}

function eventList() {
  const rows = (run.events ?? []).map(
    (event) => html`<tr><td class="number">${event.at.toFixed(4)}</td><td>${event.kind}</td>
      <td class="number">${event.turn === undefined || event.turn === null ? "" : event.turn + 1}</td><td><code>${event.facts ? JSON.stringify(event.facts) : ""}</code></td></tr>`,
  );
  return table("Events", ["#At", "Event", "#Turn", "Facts"], rows);
}

const json = () => html`<section aria-label="JSON">${copyButton(() => JSON.stringify(run, null, 2))}<pre tabindex="0">${JSON.stringify(run, null, 2)}</pre></section>`;
