// @ts-check
// Calls that wait for a person.

import { html, nothing, render, repeat } from "../lit.js";
import { get } from "../api.js";
import * as format from "../format.js";
import { fail } from "./shared.js";

export const title = "Approvals";

/** How long a card must have stood still before it takes a click, so that none hits a card that just moved. */
const STEADY_MS = 400;

/** @type {HTMLElement} */ let root;
/** @type {any[]} */ let waiting = [];
/** @type {Map<string, string>} */ let settled = new Map();
let moved = 0;
let refused = "";

/** @param {HTMLElement} main */
export function show(main) {
  root = main;
  settled = new Map();
  load();
  const clock = setInterval(draw, 1000);
  return () => clearInterval(clock);
}

/** @param {string} event @param {any} data */
export function onFeed(event, data) {
  if (event !== "approval") return;
  if (data.state !== "waiting") settled.set(data.id, `${data.decision ?? data.state}${data.by ? ` by ${data.by}` : ""}`);
  load();
}

async function load() {
  try {
    const list = await get("v1/approvals");
    const known = new Set(list.data.map((/** @type {any} */ each) => each.id));
    const gone = waiting.filter((each) => !known.has(each.id)).map((each) => ({ ...each, gone: true }));
    if (list.data.length !== waiting.length) moved = performance.now();
    waiting = [...list.data, ...gone.slice(-10)];
    refused = "";
  } catch (failure) {
    if (/** @type {any} */ (failure).status === 403) refused = "This key may not decide about calls (`approve: on`).";
    else fail(failure);
  }
  draw();
}

async function decide(/** @type {any} */ call, /** @type {string} */ decision, /** @type {string} */ reason) {
  if (performance.now() - moved < STEADY_MS) return;
  try {
    const said = await get(`v1/approvals/${encodeURIComponent(call.id)}`, { method: "POST", json: { decision, reason, hash: call.hash } });
    settled.set(call.id, `${said.decision} by ${said.by}`);
  } catch (failure) {
    settled.set(call.id, /** @type {Error} */ (failure).message);
  }
  load();
}

function draw() {
  const now = Date.now() / 1000;
  render(
    html`${refused ? html`<p class="empty">${refused}</p>` : nothing}
      ${waiting.length || refused ? nothing : html`<p class="empty">No call waits for a person.</p>`}
      ${repeat(waiting, (call) => call.id, (call) => card(call, now))}`,
    root,
  );
}

function card(/** @type {any} */ call, /** @type {number} */ now) {
  const isOver = settled.has(call.id) || call.gone;
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    decide(call, String(/** @type {HTMLButtonElement} */ (event.submitter).value), String(form.get("reason") ?? ""));
  };
  return html`<article class="card ${isOver ? "over" : ""}" aria-label="${call.tool} waits">
    <h3>${call.tool} <small>${call.safety ?? ""}</small></h3>
    <p>asked by <b>${call.caller}</b> · <a href="#/run/${call.run}">${call.run}</a> · since ${format.time(call.since)}</p>
    <pre>${JSON.stringify(call.arguments, null, 2)}</pre>
    ${isOver
      ? html`<p role="status">${settled.get(call.id) ?? "no longer waiting"}</p>`
      : html`<form @submit=${submit}>
          <label>Reason <input name="reason" maxlength="500" /></label>
          <button value="approve">Approve</button> <button value="deny" class="quiet">Deny</button>
          <small>${Math.max(0, Math.round(call.expires - now))} s left</small>
        </form>`}
  </article>`;
}
