// @ts-check
// One run: its attempts, turns and calls on a line of time, and what each call was.

import { html, nothing, render } from "../lit.js";
import { events, get, send } from "../api.js";
import * as format from "../format.js";
import { copyButton, download, fail } from "./shared.js";

export const title = "Run";

const TABS = ["waterfall", "conversation", "events", "json"];

/** @type {HTMLElement} */ let root;
/** @type {any} */ let run = null;
let id = "";
let tab = "waterfall";
let chosen = "";
let message = "";
/** @type {AbortController | null} */ let open = null;
let frame = 0;

/** @param {HTMLElement} main @param {string[]} path @param {URLSearchParams} query */
export function show(main, path, query) {
  root = main;
  id = path[0] ?? "";
  tab = TABS.includes(query.get("tab") ?? "") ? /** @type {string} */ (query.get("tab")) : "waterfall";
  chosen = query.get("call") ?? "";
  message = "";
  run = null;
  load();
  draw();
  return () => {
    open?.abort();
    cancelAnimationFrame(frame);
  };
}

async function load() {
  try {
    run = await get(`v1/runs/${encodeURIComponent(id)}?content=1`);
    if (run.state === "under_way") follow();
  } catch (failure) {
    message = /** @type {Error} */ (failure).message;
    if (/** @type {any} */ (failure).status === 401) fail(failure);
  }
  schedule();
}

async function follow() {
  open?.abort();
  const controller = (open = new AbortController());
  try {
    const response = await send(`v1/runs/${encodeURIComponent(id)}`, { headers: { accept: "text/event-stream" }, signal: controller.signal });
    run.events = [];
    for await (const { event, data } of events(response)) {
      if (event === "event") run.events.push(JSON.parse(data));
      schedule();
    }
    if (!controller.signal.aborted) run = await get(`v1/runs/${encodeURIComponent(id)}?content=1`);
  } catch (failure) {
    if (!controller.signal.aborted) fail(failure);
  }
  schedule();
}

function schedule() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(draw);
}

const at = (/** @type {Record<string, string>} */ more) => `#/run/${id}?${new URLSearchParams({ tab, ...(chosen && { call: chosen }), ...more })}`;

function draw() {
  if (!run) {
    render(html`<p class="empty" role="status">${message || "Loading …"}</p>`, root);
    return;
  }
  const [mark, word] = format.state(run.state);
  const failed = run.attempts - run.turns;
  render(
    html`<h2>${run.id}</h2>
      <p class="summary">
        <span class="state ${run.state}">${mark} ${word}</span>
        ${[
          run.finish_reason,
          `${run.turns} turns`,
          `${run.calls + run.broken_calls} calls`,
          failed > 0 ? `${failed} attempts failed` : "",
          format.seconds(run.seconds),
          `${format.count(run.tokens_in)} + ${format.count(run.tokens_out)} tokens`,
          format.money(run.cost),
        ]
          .filter(Boolean)
          .join(" · ")}
      </p>
      <p><small>
        key ${run.key || "–"} · model ${run.model}${run.deployment ? ` → ${run.deployment}` : ""} · ${format.moment(run.began)} · ${run.request_id}
        ${run.trace_id ? html` · trace ${run.trace_id}` : nothing} · content ${run.kept === "nothing" ? "not kept (record.content: off)" : run.kept}
        ${run.replay_of ? html` · replay of <a href="#/run/${run.replay_of}">${run.replay_of}</a>` : nothing}
      </small></p>
      ${run.error ? html`<p class="odd">${run.status} ${run.error}</p>` : nothing}
      ${(run.findings ?? []).length ? html`<p class="odd">findings: ${run.findings.join(", ")}</p>` : nothing}
      <menu>
        ${TABS.map((each) => html`<a href=${at({ tab: each })} aria-current=${each === tab ? "true" : nothing}>${each}</a>`)}
        ${["json", "curl", "recording", "otlp"].map((as) => html`<button type="button" class="quiet" @click=${() => save(as)}>export ${as}</button>`)}
        ${run.kept === "content" && run.state !== "under_way" ? html`<button type="button" @click=${replay}>Replay</button>` : nothing}
        <button type="button" class="quiet" @click=${remove}>Delete</button>
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
}

async function save(/** @type {string} */ as) {
  try {
    const response = await send(`v1/runs/${encodeURIComponent(id)}/export?as=${as}`);
    download(`${id}.${as === "curl" ? "sh" : "json"}`, await response.text(), response.headers.get("content-type") ?? "text/plain");
  } catch (failure) {
    fail(failure);
  }
}

async function replay() {
  try {
    const made = await get(`v1/runs/${encodeURIComponent(id)}/replay`, { method: "POST", json: { tools: "recorded" } });
    location.hash = `#/run/${made.id}`;
  } catch (failure) {
    fail(failure);
  }
}

async function remove() {
  if (!confirm("Delete this run?")) return;
  try {
    await get(`v1/runs/${encodeURIComponent(id)}`, { method: "DELETE" });
    location.hash = "#/runs";
  } catch (failure) {
    fail(failure);
  }
}

/** The turns of the run, each with its parts, out of its events. */
function turns() {
  /** @type {any[]} */ const found = [];
  const end = run.seconds ?? Date.now() / 1000 - run.began;
  for (const event of run.events ?? []) {
    const { kind, turn: index, choice = 0, facts = {} } = event;
    let turn = found.findLast((each) => each.index === index && each.choice === choice);
    if (kind === "turn_started" && !turn) {
      turn = { index, choice, from: event.at, to: end, attempts: [], calls: new Map(), facts: null };
      found.push(turn);
    }
    if (!turn) continue;
    if (kind === "attempt") turn.attempts.push({ ...facts, from: event.at - (facts.seconds ?? 0), to: event.at });
    else if (kind === "turn_ended") {
      turn.facts = facts;
      turn.answered = event.at;
      turn.to = event.at;
      for (const call of facts.calls ?? []) turn.calls.set(call.id, { ...call, parts: [] });
    } else if (facts.id !== undefined) {
      const call = turn.calls.get(facts.id) ?? { id: facts.id, name: facts.name, parts: [] };
      turn.calls.set(facts.id, call);
      if (kind === "call_waiting") call.parts.push({ what: "waiting", from: event.at, to: end });
      if (kind === "call_started") {
        const before = call.parts.at(-1);
        if (before) before.to = event.at;
        call.parts.push({ what: "tool", from: event.at, to: end });
      }
      if (kind === "call_ended") {
        if (!call.parts.length) call.parts.push({ what: "tool", from: event.at - facts.seconds, to: event.at });
        call.parts.at(-1).to = event.at;
        turn.to = Math.max(turn.to, event.at);
        Object.assign(call, { outcome: facts.outcome, seconds: facts.seconds, bytes: facts.bytes, cut_bytes: facts.cut_bytes });
      }
    }
  }
  return found;
}

function waterfall() {
  const all = turns();
  const whole = Math.max(run.seconds ?? 0, ...all.map((turn) => turn.to), 0.001);
  const bar = (/** @type {string} */ what, /** @type {number} */ from, /** @type {number} */ to) =>
    html`<i class=${what} title="${what}: ${format.seconds(to - from)}" data-from=${from / whole} data-to=${to / whole}></i>`;
  const row = (/** @type {any} */ label, /** @type {any} */ bars, /** @type {number} */ took, kind = "") =>
    html`<div class="row ${kind}" role="row"><span role="cell">${label}</span><span class="track" role="cell">${bars}</span><span role="cell" class="number">${format.seconds(took)}</span></div>`;
  return html`<section class="waterfall" role="table" aria-label="Waterfall">
      <div class="row axis" role="row"><span role="columnheader">part</span><span class="track" role="columnheader">0 … ${format.seconds(whole)}</span><span role="columnheader" class="number">took</span></div>
      ${all.map((turn) => {
        const first = turn.facts?.first_seconds === undefined ? turn.from : turn.from + turn.facts.first_seconds;
        const spoke = turn.answered ?? turn.to;
        return html`${row(
          html`<b>turn ${turn.index + 1}${turn.choice ? ` · choice ${turn.choice}` : ""}</b>`,
          [bar("first", turn.from, Math.min(first, spoke)), bar("speaking", Math.min(first, spoke), spoke)],
          turn.to - turn.from,
          "turn",
        )}
        ${turn.attempts.map((/** @type {any} */ each) => row(html`attempt ${each.attempt} ${each.deployment} <small class="odd">${each.status || ""} ${each.reason}</small>`, bar("attempt", each.from, each.to), each.seconds))}
        ${[...turn.calls.values()].map((call) =>
          row(
            html`<a href=${at({ call: call.id })} aria-current=${call.id === chosen ? "true" : nothing}>${verdict(call)} ${call.name ?? "(no name)"}</a> <small>${call.flaw ?? call.outcome ?? ""}</small>`,
            call.parts.map((/** @type {any} */ part) => bar(part.what, part.from, part.to)),
            call.seconds,
          ),
        )}`;
      })}
      ${all.length ? nothing : html`<p class="empty">${run.route === "chat" ? "Nothing was recorded of its turns." : "This request was passed through: it has no turns."}</p>`}
    </section>
    <p class="legend"><small><i class="first"></i> until the first words <i class="speaking"></i> speaking <i class="tool"></i> tool <i class="waiting"></i> waiting for a person <i class="attempt"></i> failed attempt</small></p>`;
}

const verdict = (/** @type {any} */ call) =>
  call.verdict === "broken" ? "✗" : call.owner === "client" ? "↩" : call.outcome && call.outcome !== "returned" ? "✗" : call.outcome ? "✓" : "…";

const said = (/** @type {string} */ part) => run.content?.[part];
const text = (/** @type {string} */ part) => {
  const kept = said(part);
  return kept === undefined ? html`<p class="empty">${format.whyNotKept(run.kept, kept)}</p>` : html`<pre>${format.pretty(kept)}</pre>`;
};

function callDetail() {
  const [turn, call] = turns().flatMap((each) => [...each.calls.values()].map((call) => [each, call])).find(([, call]) => call.id === chosen) ?? [];
  if (!call) return html`<section aria-label="Call"><p class="empty">No such call in this run.</p></section>`;
  return html`<section aria-label="Call" class="detail">
    <h3>turn ${turn.index + 1} · ${call.name ?? "(no name)"} <small>${call.id}</small></h3>
    <p>${call.verdict === "broken" ? html`<b class="odd">✗ broken: ${call.flaw}</b>` : html`✓ whole${call.owner === "client" ? ", the client's own" : ""}`}
      ${(call.repairs ?? []).length ? html` · repairs: ${call.repairs.join(", ")}` : nothing}
      ${call.outcome ? html` · ${call.outcome} in ${format.seconds(call.seconds)}` : nothing}</p>
    ${call.problem ? html`<dl>${Object.entries(call.problem).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>` : nothing}
    <h4>Arguments, as written</h4>
    ${text(`call.${call.id}.arguments`)}
    <h4>Result, as the model saw it${call.bytes === undefined ? "" : ` (${format.bytes(call.bytes)}${call.cut_bytes ? `, ${format.bytes(call.cut_bytes)} cut` : ""})`}</h4>
    ${text(`call.${call.id}.result`)}
    ${said(`call.${call.id}.arguments`) ? copyButton(said(`call.${call.id}.arguments`), "Copy arguments") : nothing}
    <a href=${at({ call: "" })}>Close</a>
  </section>`;
}

function conversation() {
  return html`<section aria-label="Conversation">
    <h3>Request</h3>
    ${text("request")}
    ${turns().map(
      (turn) => html`<article class="turn"><h3>Turn ${turn.index + 1}</h3>
        ${said(`turn.${turn.index}.reasoning`) ? html`<details><summary>Reasoning</summary><pre>${said(`turn.${turn.index}.reasoning`)}</pre></details>` : nothing}
        ${said(`turn.${turn.index}.text`) === undefined ? nothing : html`<pre>${said(`turn.${turn.index}.text`)}</pre>`}
        ${[...turn.calls.values()].map((call) => html`<div class="call"><p><b>${call.name}</b> ${verdict(call)}</p>${text(`call.${call.id}.arguments`)}${call.outcome ? text(`call.${call.id}.result`) : nothing}</div>`)}
      </article>`,
    )}
  </section>`;
}

function eventList() {
  return html`<table aria-label="Events"><thead><tr><th class="number">At</th><th>Event</th><th class="number">Turn</th><th>Facts</th></tr></thead>
    <tbody>${(run.events ?? []).map(
      (/** @type {any} */ event) => html`<tr><td class="number">${event.at.toFixed(4)}</td><td>${event.kind}</td>
        <td class="number">${event.turn === undefined || event.turn === null ? "" : event.turn + 1}</td><td><code>${event.facts ? JSON.stringify(event.facts) : ""}</code></td></tr>`,
    )}</tbody></table>`;
}

const json = () => html`<section aria-label="JSON">${copyButton(JSON.stringify(run, null, 2))}<pre>${JSON.stringify(run, null, 2)}</pre></section>`;
