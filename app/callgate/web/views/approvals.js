// @ts-check
// Calls that wait for a person.

import { html, nothing, render, repeat } from "../lit.js";
import { get, getExact } from "../api.js";
import * as format from "../format.js";
import { inputCard } from "./input_card.js";
import { fail, notice, table } from "./shared.js";

export const title = "Approvals";

/** How long the cards must have stood still before one takes a click, so that none hits a card that just moved. */
const STEADY_MS = 400;
/** Cards of calls that wait no more. */
const SETTLED = 10;

/** @type {HTMLElement} */ let root;
/** @type {any[]} */ let cards = [];
/** @type {Map<string, string>} */ let settled = new Map();
/** @type {Set<string>} */ let sending = new Set();
/** What became of calls that waited. @type {any[]} */ let past = [];
let moved = 0;
let state = "";

/** @param {HTMLElement} main */
export function show(main) {
  root = main;
  cards = [];
  settled = new Map();
  sending = new Set();
  state = "Loading …";
  load();
  draw();
  const clock = setInterval(draw, 1000);
  return () => clearInterval(clock);
}

/** @param {string} event @param {any} data */
export function onFeed(event, data) {
  if (event === "approval" && data.state !== "waiting") settled.set(data.id, `${data.state}${data.by ? ` by ${data.by}` : ""}`);
  if (event === "approval" || event === "back") load();
}

async function load() {
  try {
    const waiting = (await getExact("v1/approvals")).data;
    const ids = new Set(waiting.map((each) => each.id));
    // Who is there stays where it is, who is new comes last: what a pointer is over is not exchanged.
    const over = cards.filter((each) => !ids.has(each.id)).slice(-SETTLED);
    const kept = cards.filter((each) => ids.has(each.id) || over.includes(each)).map((each) => ({ ...each, gone: !ids.has(each.id) }));
    const known = new Set(cards.map((each) => each.id));
    const next = [...kept, ...waiting.filter((each) => !known.has(each.id))];
    if (next.map((each) => each.id).join() !== cards.map((each) => each.id).join()) moved = performance.now();
    cards = next;
    past = (await get("v1/approvals/history")).data;
    state = "No call waits for a person. Calls of tools that need one (`require_approval`) appear here.";
  } catch (failure) {
    state = /** @type {any} */ (failure).status === 403 ? "This key may not decide about calls (`approve: on`)." : /** @type {Error} */ (failure).message;
    if (/** @type {any} */ (failure).status === 401) fail(failure);
  }
  draw();
}

async function decide(call, /** @type {string} */ decision, /** @type {string} */ reason, /** @type {any} */ content = undefined) {
  if (sending.has(call.id)) return;
  if (performance.now() - moved < STEADY_MS) {
    notice("The cards have just moved: look again, then click.");
    return;
  }
  sending.add(call.id);
  draw();
  try {
    const said = await get(`v1/approvals/${encodeURIComponent(call.id)}`, { method: "POST", json: { decision, reason, content, hash: call.hash } });
    settled.set(call.id, `${said.decision} by ${said.by}`);
  } catch (failure) {
    const { status, message } = /** @type {any} */ (failure);
    if (status === 409 || status === 404) settled.set(call.id, settled.get(call.id) ?? message);
    else fail(failure); // it may be tried again
  }
  sending.delete(call.id);
  load();
}

function draw() {
  const now = Date.now() / 1000;
  render(
    html`<h2 class="visually-hidden">Calls that wait for a person</h2>
      ${cards.length ? nothing : html`<p class="empty" role="status">${state}</p>`}
      ${repeat(cards, (call) => call.id, (call) => card(call, now))}
      ${past.length
        ? html`<h2>Decided since the server began</h2>
          ${table("History", ["When", "Decision", "By", "Reason", "Tool", "Asked by", "Run"], past.map(decided))}`
        : nothing}`,
    root,
  );
}

function card(call, /** @type {number} */ now) {
  const isOver = settled.has(call.id) || call.gone;
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const said = /** @type {HTMLButtonElement | null} */ (event.submitter)?.value;
    if (said) decide(call, said, String(form.get("reason") ?? ""));
  };
  if (call.kind === "input") {
    const over = isOver ? settled.get(call.id) ?? "no longer waiting" : "";
    const answer = (/** @type {string} */ decision, /** @type {any} */ content) => decide(call, decision, "", content);
    const seconds = Math.max(0, Math.round(call.expires - now));
    return html`<article class="card ${over ? "over" : ""}" aria-label="${call.tool} asks">
      ${inputCard(call, { over, sending: sending.has(call.id), seconds, answer })}
    </article>`;
  }
  return html`<article class="card ${isOver ? "over" : ""}" aria-label="${call.tool} waits">
    <h3>${call.tool} <small>${call.safety ?? ""} · ${call.source ?? ""}</small></h3>
    <p>asked by <b>${call.caller}</b> · <a href="#/run/${encodeURIComponent(call.run)}?call=${encodeURIComponent(call.call)}">${call.run}</a> · since ${format.time(call.since)}
      · arguments <code title=${call.hash}>${String(call.hash).slice(0, 12)}…</code></p>
    <p>${call.description}</p>
    <pre tabindex="0">${format.shown(call.arguments)}</pre>
    ${isOver
      ? html`<p role="status">${settled.get(call.id) ?? "no longer waiting"}</p>`
      : html`<form @submit=${submit}>
          <label>Reason <input name="reason" maxlength="500" size="36" placeholder="for the model, when denied" @keydown=${noSubmit} /></label>
          <button value="approve" ?disabled=${sending.has(call.id)}>Approve</button>
          <button value="deny" class="quiet" ?disabled=${sending.has(call.id)}>Deny</button>
          <small>${Math.max(0, Math.round(call.expires - now))} s left</small>
        </form>`}
  </article>`;
}

const decided = (call) => html`<tr><td>${format.moment(call.ended)}</td>
  <td class=${call.decision === "approved" ? "" : "odd"}>${call.decision}</td><td>${call.by || "–"}</td><td>${call.reason || "–"}</td><td>${call.tool}<small>${call.safety}</small></td><td>${call.caller}</td>
  <td><a href="#/run/${encodeURIComponent(call.run)}?call=${encodeURIComponent(call.call)}">${call.run}</a></td></tr>`;

/** Enter in the reason would press the first button, which approves. @param {KeyboardEvent} event */
function noSubmit(event) {
  if (event.key === "Enter") event.preventDefault();
}
