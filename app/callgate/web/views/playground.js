// @ts-check
// A chat, and beside it the loop as it happens: each call as it is written, its verdict, its run, the next turn.

import { html, nothing, render, repeat } from "../lit.js";
import { ApiError, events, get, send } from "../api.js";
import * as format from "../format.js";
import { asCurl, asPython, copyButton, fail } from "./shared.js";

export const title = "Playground";

/** What may be asked of the built-in tools. */
const TRIES = ["What is 2*21, and what time is it in Tokyo?", "What is 17 times 23, and then the time in Berlin?"];
const SHOWN_TRIES = 2;

/** @typedef {{id: string, name: string, text: string, pieces: number, state: string, note: string, result?: string, seconds?: number, progress?: string}} Call */
/** @typedef {{index: number, choice: number, words: number, started: number, first?: number, ended?: any, attempts: any[], calls: Map<string, Call>}} Turn */

/** @type {HTMLElement} */ let root;
/** @type {{role: string, content: string, note?: string}[]} */ let messages = [];
/** @type {Turn[]} */ let turns = [];
/** @type {any[]} */ let models = [];
/** @type {any[]} */ let tools = [];
/** @type {Set<string>} */ let left = new Set();
let model = "";
let noModels = "Loading …";
let system = "";
let temperature = "";
let streams = true;
let run = "";
let ending = "";
/** Whether this key may not see how its runs go: their turns are told at their end. */ let isBlind = false;
/** @type {AbortController | null} */ let open = null;
let frame = 0;

/** @param {HTMLElement} main */
export function show(main) {
  root = main;
  get("v1/models").then(
    (list) => {
      models = list.data;
      model = models.some((each) => each.id === model) ? model : (models[0]?.id ?? "");
      noModels = "This key may ask no model.";
      schedule();
    },
    (failure) => {
      noModels = failure.message;
      schedule();
      fail(failure);
    },
  );
  get("v1/tools").then((list) => {
    tools = list.data.filter((tool) => tool.state === "ready" && tool.source !== "callgate");
    schedule();
  }, fail);
  draw();
  return () => cancelAnimationFrame(frame);
}

/** Questions that lead to calls of the tools that are there. */
function tries() {
  const names = tools.map((tool) => tool.name);
  return names.includes("calculator") && names.includes("clock") ? TRIES : names.slice(0, SHOWN_TRIES).map((name) => `Call ${name}.`);
}

function schedule() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(draw);
}

/** The request, as it would be sent now. */
function request() {
  const history = messages.filter((message) => message.content).map(({ role, content }) => ({ role, content }));
  return {
    model,
    messages: system ? [{ role: "system", content: system }, ...history] : history,
    ...(temperature !== "" && { temperature: Number(temperature) }),
    stream: streams,
  };
}

async function ask(/** @type {SubmitEvent} */ event) {
  event.preventDefault();
  const form = /** @type {HTMLFormElement} */ (event.target);
  const field = /** @type {HTMLTextAreaElement} */ (form.elements.namedItem("message"));
  if (open || !field.value.trim()) return;
  messages.push({ role: "user", content: field.value });
  field.value = "";
  const body = request();
  const answer = { role: "assistant", content: "", note: "" };
  messages.push(answer);
  turns = [];
  run = ending = "";
  isBlind = false;
  open = new AbortController();
  schedule();
  /** @type {Record<string, string>} */
  const headers = { "x-callgate-events": "trace" };
  if (left.size) headers["x-callgate-tools"] = tools.map((tool) => tool.name).filter((name) => !left.has(name)).join(",") || "none";
  const post = () => send("v1/chat/completions", { method: "POST", json: body, headers, signal: open?.signal });
  try {
    const response = await post().catch((failure) => {
      if (failure.code !== "see_not_allowed") throw failure;
      isBlind = true;
      delete headers["x-callgate-events"];
      return post();
    });
    run = response.headers.get("x-callgate-run") ?? "";
    if (body.stream) await readStream(response, answer);
    else readWhole(await response.json(), answer);
  } catch (failure) {
    if (open?.signal.aborted) answer.note = "stopped";
    else if (failure instanceof ApiError) {
      answer.note = failure.status ? `${failure.status}: ${failure.message}` : failure.message;
      run ||= failure.run;
      if (failure.status === 401) fail(failure);
    } else answer.note = `The stream broke off: ${failure instanceof Error ? failure.message : failure}`;
  }
  open = null;
  schedule();
}

async function readStream(/** @type {Response} */ response, answer) {
  let isWhole = false;
  for await (const { data } of events(response)) {
    if (data === "[DONE]") {
      isWhole = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) {
      answer.note = `${chunk.error.code ?? chunk.error.type}: ${chunk.error.message}`;
      isWhole = true;
    }
    const choice = chunk.choices?.[0];
    answer.content += choice?.delta?.content ?? "";
    for (const call of choice?.delta?.tool_calls ?? []) answer.note = `calls ${call.function?.name ?? "a tool"} of yours`;
    if (choice?.finish_reason) ending = choice.finish_reason;
    if (isBlind) tell(chunk.x_callgate);
    if (chunk.x_callgate?.trace) for (const each of [chunk.x_callgate.trace].flat()) happen(each);
    schedule();
  }
  if (!isWhole) answer.note = "The stream broke off here.";
}

function readWhole(body, answer) {
  const choice = body.choices[0];
  answer.content = choice.message.content ?? "";
  ending = choice.finish_reason;
  tell(body.x_callgate);
}

/** The turns of an answer that has ended. @param {any} said */
function tell(said) {
  for (const [index, turn] of (said?.turns ?? []).entries()) {
    happen({ kind: "turn_started", turn: index, at: 0 });
    happen({ kind: "turn_ended", turn: index, at: turn.ms / 1000, facts: { ...turn, seconds: turn.ms / 1000, finish_reasons: [turn.finish_reason] } });
    for (const call of turn.calls) if (call.outcome) happen({ kind: "call_ended", turn: index, facts: { ...call, seconds: call.ms / 1000 } });
  }
}

/** One event of the run. @param {any} event */
function happen({ kind, turn: index, choice = 0, at = 0, facts = {} }) {
  let turn = turns.find((each) => each.index === index && each.choice === choice);
  if (kind === "turn_started" && !turn && index !== undefined) {
    turn = { index, choice, words: 0, started: at, attempts: [], calls: new Map() };
    turns.push(turn);
  }
  if (!turn) return;
  if (kind === "attempt") turn.attempts.push(facts);
  else if (kind === "words") {
    turn.first ??= at;
    turn.words += facts.characters ?? 0;
  } else if (kind === "call_fragment") {
    turn.first ??= at;
    const key = `#${facts.index ?? turn.calls.size}`;
    const call = turn.calls.get(key) ?? { id: "", name: "", text: "", pieces: 0, state: "gathering", note: "" };
    call.id ||= facts.id ?? "";
    call.name += call.name ? "" : (facts.name ?? "");
    call.text += typeof facts.arguments === "string" ? facts.arguments : facts.arguments ? JSON.stringify(facts.arguments) : "";
    call.pieces += 1;
    turn.calls.set(key, call);
  } else if (kind === "turn_ended") {
    turn.ended = facts;
    const gathered = [...turn.calls.values()];
    turn.calls = new Map();
    for (const [place, each] of (facts.calls ?? []).entries()) {
      const before = gathered.find((call) => call.id && call.id === each.id) ?? gathered[place];
      turn.calls.set(each.id, {
        id: each.id,
        name: each.name ?? before?.name ?? "(no name)",
        text: before?.text.startsWith(each.arguments ?? "") ? before.text : (each.arguments ?? ""), // which is cut, where it is long
        pieces: before?.pieces ?? 0,
        state: each.verdict === "broken" ? "broken" : each.owner === "client" ? "handed back" : "whole",
        note: each.verdict === "broken" ? `${each.flaw}: not run` : (each.repairs ?? []).join(", "),
      });
    }
  } else {
    const call = turn.calls.get(facts.id);
    if (!call) return;
    if (kind === "call_started") call.state = "running";
    else if (kind === "call_progress" && facts.approval) call.state = "waiting for approval";
    else if (kind === "call_progress") {
      call.state = "running";
      call.progress = facts.approved ? "approved" : progress(facts);
    }
    else if (kind === "call_ended") {
      call.state = facts.outcome === "returned" ? "done" : "failed";
      call.note = facts.outcome === "returned" ? "" : facts.outcome;
      call.seconds = facts.seconds;
      call.result = facts.result;
      call.progress = "";
    }
  }
}

const progress = (facts) =>
  [facts.message, facts.fraction === null || facts.fraction === undefined ? "" : `${Math.round(facts.fraction * 100)} %`].filter(Boolean).join(" ");

function onKey(/** @type {KeyboardEvent} */ event) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    /** @type {HTMLTextAreaElement} */ (event.target).form?.requestSubmit();
  }
}

function draw() {
  const toggle = (/** @type {string} */ name) => {
    left.has(name) ? left.delete(name) : left.add(name);
    schedule();
  };
  render(
    html`<section class="settings" aria-label="Settings">
        <label>Model <select @change=${(e) => ((model = e.target.value), schedule())}>
          ${models.map((each) => html`<option ?selected=${each.id === model}>${each.id}</option>`)}
        </select></label>
        <label>Temperature <input type="number" min="0" max="2" step="0.1" .value=${temperature} @input=${(e) => ((temperature = e.target.value), schedule())} /></label>
        <label class="check"><input type="checkbox" .checked=${streams} @change=${(e) => ((streams = e.target.checked), schedule())} /> stream</label>
        <details><summary>System prompt${system ? " ✓" : ""}</summary>
          <textarea aria-label="System prompt" rows="3" .value=${system} @input=${(e) => ((system = e.target.value), schedule())}></textarea></details>
        <details><summary>Tools (${tools.length - left.size} of ${tools.length})</summary>
          <div class="checks">${tools.map(
            (tool) => html`<label class="check" title=${tool.description ?? ""}><input type="checkbox" .checked=${!left.has(tool.name)} @change=${() => toggle(tool.name)} /> ${tool.name}</label>`,
          )}</div></details>
      </section>
      <div class="split">
        <section aria-label="Conversation" class="chat">
          <div class="messages" aria-live="polite">
            ${messages.map(
              (message) => html`<article class=${message.role}><h3>${message.role}</h3>
                <p>${message.content}</p>${message.note ? html`<p class="odd" role="alert">${message.note}</p>` : nothing}</article>`,
            )}
            ${messages.length
              ? nothing
              : html`<p class="empty">Ask something that needs a tool, and see each call while it is written.</p>
                <p class="tries">${tries().map((each) => html`<button type="button" class="quiet" @click=${fill}>${each}</button>`)}</p>`}
          </div>
          <form @submit=${ask}>
            <textarea name="message" rows="2" aria-label="Message" placeholder="Message (Enter sends)" @keydown=${onKey}></textarea>
            ${open
              ? html`<button type="button" @click=${() => open?.abort()}>Stop</button>`
              : html`<button>Send</button>`}
          </form>
          <menu>
            ${messages.length ? html`<button type="button" class="quiet" @click=${clear}>New chat</button>` : nothing}
            ${copyButton(() => asCurl(request()), "Copy as curl")} ${copyButton(() => asPython(request()), "Copy as Python")}
            ${copyButton(() => JSON.stringify(request(), null, 2), "Copy as JSON")}
          </menu>
        </section>
        <section aria-label="What happens" class="trace">
          ${repeat(turns, (/** @type {Turn} */ turn) => `${turn.choice}.${turn.index}`, drawTurn)}
          ${open && !turns.length ? html`<p class="empty" role="status">Asked ${model} …</p>` : nothing}
          ${ending ? html`<p>The answer's finish_reason: <code>${ending}</code></p>` : nothing}
          ${isBlind ? html`<p class="empty">This key may not see runs: their calls are told at the end.</p>` : run ? html`<p><a href="#/run/${run}">Open ${run}</a></p>` : nothing}
          ${models.length ? nothing : html`<p class="empty" role="status">${noModels}</p>`}
          ${turns.length || open ? nothing : html`<p class="empty">Turns and calls appear here while they happen.</p>`}
        </section>
      </div>`,
    root,
  );
}

/** An example goes into the field, and is not sent yet. @param {Event} event */
function fill(event) {
  const field = /** @type {HTMLTextAreaElement} */ (root.querySelector("textarea[name=message]"));
  field.value = /** @type {HTMLElement} */ (event.target).innerText;
  field.focus();
}

function clear() {
  messages = [];
  turns = [];
  run = ending = "";
  schedule();
}

function drawTurn(/** @type {Turn} */ turn) {
  const facts = turn.ended;
  return html`<article class="turn">
    <h3>Turn ${turn.index + 1}${turn.choice ? html` · choice ${turn.choice}` : nothing}
      <small>${turn.first !== undefined ? html`first words after ${format.seconds(turn.first - turn.started)}` : facts ? "" : "waiting for the first words …"}</small></h3>
    ${turn.attempts.map((each) => html`<p class=${each.reason ? "odd" : ""}>attempt ${each.number}: ${each.deployment} ${each.status || ""} ${each.reason ?? "answered"}</p>`)}
    ${turn.words ? html`<p>${turn.words} characters of text</p>` : nothing}
    ${[...turn.calls.values()].map(
      (call) => html`<div class="call ${call.state.replaceAll(" ", "-")}">
        <p><b>${call.name || "…"}</b> <span class="verdict">${mark(call.state)} ${call.state}</span>
          ${call.seconds === undefined ? nothing : html`<small>${format.seconds(call.seconds)}</small>`}
          ${call.state === "gathering" ? html`<small>${call.pieces} fragments</small>` : nothing}
          ${call.state === "waiting for approval" ? html`<a href="#/approvals">decide</a>` : nothing}
          ${call.note ? html`<small class="odd">${call.note}</small>` : nothing}
          ${call.progress ? html`<small>${call.progress}</small>` : nothing}</p>
        ${call.text || !facts ? html`<pre tabindex="0">${start(call.text)}</pre>` : nothing}
        ${call.result === undefined ? nothing : html`<pre class="result" tabindex="0" aria-label="Result">${start(call.result)}</pre>`}
      </div>`,
    )}
    ${facts
      ? html`<p><small>finish_reason <code>${(facts.finish_reasons ?? []).join(", ") || "none"}</code>
          ${facts.usage ? html` · ${format.count(facts.usage.prompt_tokens)} + ${format.count(facts.usage.completion_tokens)} tokens in + out` : nothing}
          ${facts.cost === undefined ? nothing : html` · ${format.money(facts.cost)}`}
          · ${format.seconds(facts.seconds)}${(facts.findings ?? []).length ? html` · <span class="odd">${facts.findings.join(", ")}</span>` : nothing}</small></p>`
      : nothing}
  </article>`;
}

/** Of a long text its beginning: the whole of it is in the run. @param {string} text */
const start = (text) => (text.length > 4000 ? `${text.slice(0, 4000)}… (${format.count(text.length)} characters)` : text);

const MARKS = { gathering: "✎", whole: "✓", broken: "✗", running: "▶", done: "✓", failed: "✗", "handed back": "↩", "waiting for approval": "⏸" };
const mark = (/** @type {string} */ state) => MARKS[/** @type {keyof typeof MARKS} */ (state)] ?? "";
