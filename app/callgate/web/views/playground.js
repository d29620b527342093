// @ts-check
// A chat, and beside it the loop as it happens: each call as it is written, its verdict, its run, the next turn.

import { html, nothing, render, repeat } from "../lit.js";
import { ApiError, events, get, getExact, me, send } from "../api.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { markdown } from "../markdown.js";
import { asCurl, asPython, copyButton, fail } from "./shared.js";

export const title = "Playground";

/** What may be asked of the built-in tools. */
const TRIES = ["What is 2*21, and what time is it in Tokyo?", "What is 17 times 23, and then the time in Berlin?"];
/** What the demo model answers with half a call. */
const CUT_TRY = "What is 2*21? Cut your first call off.";
const SHOWN_TRIES = 2;
/** Bytes of an image: more of them would not fit into a request. */
const IMAGE_BYTES = 4_000_000;
/** Characters of a raw answer that are kept. */
const RAW_CHARACTERS = 400_000;

/** @typedef {{id: string, name: string, text: string, pieces: number, state: string, note: string, problem?: Record<string, string>, result?: string, images?: string[], seconds?: number, progress?: string, approval?: string}} Call */
/** @typedef {{index: number, choice: number, words: number, started: number, first?: number, ended?: any, attempts: any[], calls: Map<string, Call>}} Turn */
/**
 * A question, and what came of it.
 * @typedef {{text: string, images: string[], model: string, content: string, reasoning: string, note: string, turns: Turn[], run: string, finish: string, ending: string, raw: string, isBlind: boolean, isOver: boolean, isRawOpen: boolean, isTraceOpen: boolean}} Exchange
 */

/** @type {HTMLElement} */ let root;
/** @type {Exchange[]} */ let exchanges = [];
/** @type {any[]} */ let models = [];
/** @type {any[]} */ let tools = [];
/** @type {Set<string>} */ let left = new Set();
let model = "";
/** Ends when the models are known, or cannot be. @type {Promise<unknown>} */ let modelsAsked = Promise.resolve();
let noModels = "Loading …";
let system = "";
let temperature = "";
let maxTokens = "";
let streams = true;
/** Whether answers are shown as they were written. */ let isRaw = false;
/** What is typed and not sent yet. */ let draft = "";
/** @type {string[]} */ let images = [];
/** Calls that wait for a person, as the server lists them, by their approval. @type {Map<string, any>} */ let waiting = new Map();
/** @type {AbortController | null} */ let open = null;
let frame = 0;

/** @param {HTMLElement} main */
export function show(main) {
  root = main;
  modelsAsked = get("v1/models?details=1").then(
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
  if (!names.includes("calculator") || !names.includes("clock")) return names.slice(0, SHOWN_TRIES).map((name) => `Call ${name}.`);
  return models.some((each) => each.id === model && isDemo(each)) ? [...TRIES, CUT_TRY] : TRIES;
}

/** Whether a model is the one that is built in, which can be asked to cut a call off. @param {any} each */
const isDemo = (each) => each.x_callgate?.deployments?.[0]?.lane === "demo";

function schedule() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(draw);
}

/** The request, as it would be sent now. @param {Exchange[]} [before] */
function request(before = exchanges) {
  const history = before.flatMap((each) => [
    { role: "user", content: each.images.length ? [...(each.text ? [{ type: "text", text: each.text }] : []), ...each.images.map((url) => ({ type: "image_url", image_url: { url } }))] : each.text },
    ...(each.content ? [{ role: "assistant", content: each.content }] : []),
  ]);
  return {
    model,
    messages: system ? [{ role: "system", content: system }, ...history] : history,
    ...(temperature !== "" && { temperature: Number(temperature) }),
    ...(maxTokens !== "" && { max_tokens: Number(maxTokens) }),
    stream: streams,
  };
}

async function ask(/** @type {SubmitEvent} */ event) {
  event.preventDefault();
  await modelsAsked; // somebody who types fast
  if (open || !model || !(draft.trim() || images.length)) return;
  /** @type {Exchange} */
  const now = { text: draft, images, model, content: "", reasoning: "", note: "", turns: [], run: "", finish: "", ending: "", raw: "", isBlind: false, isOver: false, isRawOpen: false, isTraceOpen: false };
  exchanges.push(now);
  const body = request();
  draft = "";
  images = [];
  open = new AbortController();
  schedule();
  /** @type {Record<string, string>} */
  const headers = { "x-callgate-events": "trace", "x-callgate-record": "own" };
  if (left.size) headers["x-callgate-tools"] = tools.map((tool) => tool.name).filter((name) => !left.has(name)).join(",") || "none";
  const post = () => send("v1/chat/completions", { method: "POST", json: body, headers, signal: open?.signal });
  try {
    const response = await post().catch((failure) => {
      if (failure.code !== "see_not_allowed") throw failure;
      now.isBlind = true;
      delete headers["x-callgate-events"];
      return post();
    });
    now.run = response.headers.get("x-callgate-run") ?? "";
    if (body.stream) await readStream(response, now);
    else readWhole(await response.text(), now);
  } catch (failure) {
    if (open?.signal.aborted) now.note = "stopped";
    else if (failure instanceof ApiError) {
      now.note = failure.status ? `${failure.status}: ${failure.message}` : failure.message;
      now.run ||= failure.run;
      if (failure.status === 401) fail(failure);
    } else now.note = `The stream broke off: ${failure instanceof Error ? failure.message : failure}`;
  }
  now.isOver = true;
  open = null;
  schedule();
}

/** @param {Response} response @param {Exchange} now */
async function readStream(response, now) {
  let isWhole = false;
  for await (const { data } of events(response)) {
    if (now.raw.length < RAW_CHARACTERS) now.raw += `data: ${data}\n\n`;
    if (data === "[DONE]") {
      isWhole = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) {
      now.note = `${chunk.error.code ?? chunk.error.type}: ${chunk.error.message}`;
      isWhole = true;
    }
    const choice = chunk.choices?.[0];
    now.content += choice?.delta?.content ?? "";
    now.reasoning += choice?.delta?.reasoning_content ?? "";
    for (const call of choice?.delta?.tool_calls ?? []) if (call.function?.name) now.note = `calls ${call.function.name} of yours`;
    if (choice?.finish_reason) now.finish = choice.finish_reason;
    if (chunk.x_callgate?.ending) now.ending = chunk.x_callgate.ending;
    if (now.isBlind) tell(now, chunk.x_callgate);
    if (chunk.x_callgate?.trace) for (const each of [chunk.x_callgate.trace].flat()) happen(now, each);
    schedule();
  }
  if (!isWhole) now.note = "The stream broke off here.";
}

/** @param {string} text @param {Exchange} now */
function readWhole(text, now) {
  now.raw = format.pretty(text);
  const body = JSON.parse(text);
  const choice = body.choices[0];
  now.content = choice.message.content ?? "";
  now.reasoning = choice.message.reasoning_content ?? "";
  now.finish = choice.finish_reason;
  now.ending = body.x_callgate?.ending ?? "";
  tell(now, body.x_callgate);
}

/** The turns of an answer that has ended. @param {Exchange} now @param {any} said */
function tell(now, said) {
  for (const [index, turn] of (said?.turns ?? []).entries()) {
    happen(now, { kind: "turn_started", turn: index, at: 0 });
    happen(now, { kind: "turn_ended", turn: index, at: turn.ms / 1000, facts: { ...turn, seconds: turn.ms / 1000, finish_reasons: [turn.finish_reason] } });
    for (const call of turn.calls) if (call.outcome) happen(now, { kind: "call_ended", turn: index, facts: { ...call, seconds: call.ms / 1000 } });
  }
}

/** One event of a run. @param {Exchange} now @param {any} event */
function happen({ turns }, { kind, turn: index, choice = 0, at = 0, facts = {} }) {
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
        problem: each.problem,
      });
    }
  } else {
    const call = turn.calls.get(facts.id);
    if (!call) return;
    if (kind === "call_started") call.state = "running";
    else if (kind === "call_progress" && facts.approval) {
      call.state = "waiting for approval";
      call.approval = facts.approval;
      loadWaiting();
    } else if (kind === "call_progress" && facts.input) call.state = "waiting for an answer";
    else if (kind === "call_progress") {
      call.state = "running";
      call.progress = facts.approved ? "approved" : progress(facts);
    }
    else if (kind === "call_ended") {
      call.state = facts.outcome === "returned" ? "done" : "failed";
      call.note = facts.outcome === "returned" ? "" : facts.outcome;
      call.seconds = facts.seconds;
      call.result = facts.result;
      call.images = facts.images;
      call.progress = "";
    }
  }
}

const progress = (facts) =>
  [facts.message, facts.fraction === null || facts.fraction === undefined ? "" : `${Math.round(facts.fraction * 100)} %`].filter(Boolean).join(" ");

/** What waits for a person: with its hash, so that what is decided about is what was seen. */
async function loadWaiting() {
  if (!me?.approve) return;
  try {
    waiting = new Map((await getExact("v1/approvals")).data.map((each) => [each.id, each]));
  } catch (failure) {
    fail(failure);
  }
  schedule();
}

/** @param {any} card @param {SubmitEvent} event */
async function decide(card, event) {
  event.preventDefault();
  const decision = /** @type {HTMLButtonElement | null} */ (event.submitter)?.value;
  if (!decision) return;
  const reason = String(new FormData(/** @type {HTMLFormElement} */ (event.target)).get("reason") ?? "");
  waiting.delete(card.id);
  schedule();
  try {
    await get(`v1/approvals/${encodeURIComponent(card.id)}`, { method: "POST", json: { decision, reason, hash: card.hash } });
  } catch (failure) {
    fail(failure);
    loadWaiting();
  }
}

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
  const chosen = models.find((each) => each.id === model);
  render(
    html`<section class="settings" aria-label="Settings">
        <label>Model <select @change=${(e) => ((model = e.target.value), schedule())}>
          ${models.map((each) => html`<option ?selected=${each.id === model}>${each.id}</option>`)}
        </select></label>
        <label>Temperature <input type="number" min="0" max="2" step="0.1" .value=${temperature} @input=${(e) => ((temperature = e.target.value), schedule())} /></label>
        <label>Max tokens <input type="number" min="1" step="1" class="short" .value=${maxTokens} @input=${(e) => ((maxTokens = e.target.value), schedule())} /></label>
        <label class="check"><input type="checkbox" .checked=${streams} @change=${(e) => ((streams = e.target.checked), schedule())} /> stream</label>
        <label class="check"><input type="checkbox" .checked=${isRaw} @change=${(e) => ((isRaw = e.target.checked), schedule())} /> show text raw</label>
        <details><summary>System prompt${system ? " (set)" : ""}</summary>
          <textarea aria-label="System prompt" rows="3" .value=${system} @input=${(e) => ((system = e.target.value), schedule())}></textarea></details>
        <details><summary>Tools (${tools.length - left.size} of ${tools.length})</summary>
          <div class="checks">${tools.map(
            (tool) => html`<label class="check" title=${tool.description ?? ""}><input type="checkbox" .checked=${!left.has(tool.name)} @change=${() => toggle(tool.name)} /> ${tool.name}</label>`,
          )}</div></details>
      </section>
      <div class="split">
        <section aria-label="Conversation" class="chat">
          <div class="messages" aria-live="polite">
            ${exchanges.map(drawExchange)}
            ${exchanges.length
              ? nothing
              : html`<p class="empty">Ask something that needs a tool, and see each call while it is written.</p>
                <p class="tries">${tries().map((each) => html`<button type="button" class="quiet" @click=${fill}>${each}</button>`)}</p>`}
          </div>
          <form @submit=${ask} @paste=${onPaste}>
            <textarea name="message" rows="2" aria-label="Message" placeholder="Message (Enter sends)" .value=${draft} @input=${(e) => (draft = e.target.value)} @keydown=${onKey}></textarea>
            ${open
              ? html`<button type="button" @click=${() => open?.abort()}>Stop</button>`
              : html`<button ?disabled=${!chosen}>Send</button>`}
          </form>
          ${images.length
            ? html`<p class="thumbs">${images.map((each, place) => html`<span><img src=${each} alt="To be sent" /><button type="button" class="quiet" aria-label="Leave this image out" @click=${() => ((images = images.filter((_, at) => at !== place)), schedule())}>${icon("cross")}</button></span>`)}</p>`
            : nothing}
          <menu>
            <label class="button">${icon("image")} Add an image<input type="file" accept="image/*" multiple class="visually-hidden" @change=${onFiles} /></label>
            ${exchanges.length ? html`<button type="button" class="quiet" ?disabled=${open} @click=${clear}>New chat</button>` : nothing}
            ${copyButton(() => asCurl(request()), "Copy as curl")} ${copyButton(() => asPython(request()), "Copy as Python")}
            ${copyButton(() => JSON.stringify(request(), null, 2), "Copy as JSON")}
          </menu>
        </section>
        <section aria-label="What happens" class="trace">
          ${repeat([...exchanges.entries()].reverse(), ([place]) => place, ([place, each]) => drawTrace(each, place))}
          ${models.length ? nothing : html`<p class="empty" role="status">${noModels}</p>`}
          ${exchanges.length ? nothing : html`<p class="empty">Turns and calls appear here while they happen.</p>`}
        </section>
      </div>`,
    root,
  );
}

/** @param {Exchange} each */
function drawExchange(each) {
  const thinks = !each.isOver && each.reasoning && !each.content;
  return html`<article class="user"><h3>user</h3>${each.text ? html`<p>${each.text}</p>` : nothing}
      ${each.images.length ? html`<p class="thumbs">${each.images.map((url) => html`<img src=${url} alt="Sent with the question" />`)}</p>` : nothing}</article>
    <article class="assistant"><h3>assistant</h3>
      ${each.reasoning ? html`<details class="reasoning"><summary>${thinks ? "Thinking …" : "Reasoning"} <small>${format.count(each.reasoning.length)} characters</small></summary><p>${each.reasoning}</p></details>` : nothing}
      ${each.content ? (isRaw ? html`<p>${each.content}</p>` : html`<div class="written">${markdown(each.content)}</div>`) : nothing}
      ${each.note ? html`<p class="odd" role="alert">${each.note}</p>` : nothing}
      ${each.isOver && !each.content && !each.note ? html`<p class="empty" role="status">${whyEmpty(each)}</p>` : nothing}
      ${each.raw && each.isOver
        ? html`<details class="answer" @toggle=${(e) => ((each.isRawOpen = e.target.open), schedule())}><summary>The raw answer</summary>
            ${each.isRawOpen ? html`${copyButton(() => each.raw)}<pre tabindex="0">${start(each.raw, 100_000)}</pre>` : nothing}</details>`
        : nothing}
    </article>`;
}

/** Why there is no text. @param {Exchange} each */
function whyEmpty(each) {
  const broken = each.turns.flatMap((turn) => [...turn.calls.values()]).filter((call) => call.state === "broken").length;
  const parts = [each.finish && `finish_reason ${each.finish}`, each.ending && `the run ended as ${each.ending.replaceAll("_", " ")}`, broken && `${format.many(broken, "call")} broken and not run`];
  return `The model wrote no text: ${parts.filter(Boolean).join(", ") || "nothing says why"}.`;
}

/** An example goes into the field, and is not sent yet. @param {Event} event */
function fill(event) {
  draft = /** @type {HTMLElement} */ (event.target).innerText;
  draw();
  /** @type {HTMLTextAreaElement} */ (root.querySelector("textarea[name=message]")).focus();
}

function clear() {
  exchanges = [];
  schedule();
}

/** @param {Event} event */
function onFiles(event) {
  const field = /** @type {HTMLInputElement} */ (event.target);
  take([...(field.files ?? [])]);
  field.value = "";
}

/** @param {ClipboardEvent} event */
function onPaste(event) {
  const files = [...(event.clipboardData?.files ?? [])].filter((file) => file.type.startsWith("image/"));
  if (!files.length) return;
  event.preventDefault();
  take(files);
}

/** Images go with the next question. @param {File[]} files */
function take(files) {
  for (const file of files) {
    if (!file.type.startsWith("image/") || file.size > IMAGE_BYTES) {
      fail(`${file.name}: should be an image of ${format.bytes(IMAGE_BYTES)} or less`);
      continue;
    }
    const reader = new FileReader();
    reader.addEventListener("load", () => {
      images = [...images, String(reader.result)];
      schedule();
    });
    reader.addEventListener("error", () => fail(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  }
}

/** What happened for one question; that of earlier ones is folded. @param {Exchange} each @param {number} place */
function drawTrace(each, place) {
  const isLast = place === exchanges.length - 1;
  const costs = each.turns.map((turn) => turn.ended?.cost).filter((cost) => typeof cost === "number");
  const total = costs.reduce((sum, cost) => sum + cost, 0);
  const drawn = () => html`${repeat(each.turns, (/** @type {Turn} */ turn) => `${turn.choice}.${turn.index}`, drawTurn)}
    ${!each.isOver && !each.turns.length ? html`<p class="empty" role="status">Asked ${each.model} …</p>` : nothing}
    ${each.finish ? html`<p>The answer's finish_reason: <code>${each.finish}</code>${each.turns.length > 1 && costs.length ? html` · ${format.money(total)} in all` : nothing}</p>` : nothing}
    ${each.isBlind ? html`<p class="empty">This key may not see runs: their calls are shown at the end.</p>` : each.run ? html`<p><a href="#/run/${each.run}">Open ${each.run}</a></p>` : nothing}`;
  if (isLast) return drawn();
  const calls = each.turns.reduce((sum, turn) => sum + turn.calls.size, 0);
  return html`<details class="before" @toggle=${(e) => ((each.isTraceOpen = e.target.open), schedule())}>
    <summary>${start(each.text, 60)} <small>${format.many(each.turns.length, "turn")}, ${format.many(calls, "call")}</small></summary>${each.isTraceOpen ? drawn() : nothing}</details>`;
}

function drawTurn(/** @type {Turn} */ turn) {
  const facts = turn.ended;
  return html`<article class="turn">
    <h3>Turn ${turn.index + 1}${turn.choice ? html` · choice ${turn.choice}` : nothing}
      <small>${turn.first !== undefined ? html`first words after ${format.seconds(turn.first - turn.started)}` : facts ? "" : "waiting for the first words …"}</small></h3>
    ${turn.attempts.map((each) => html`<p class=${each.reason ? "odd" : ""}>attempt ${each.number}: ${each.deployment} ${each.status || ""} ${each.reason ?? "answered"}${each.detail ? html`<br /><small>${each.detail}</small>` : nothing}</p>`)}
    ${turn.words ? html`<p>${format.count(turn.words)} characters of text</p>` : nothing}
    ${[...turn.calls.values()].map(drawCall)}
    ${facts
      ? html`<p><small>finish_reason <code>${(facts.finish_reasons ?? []).join(", ") || "none"}</code>
          ${facts.usage ? html` · ${format.tokens(facts.usage)}` : nothing}
          ${facts.cost === undefined ? nothing : html` · ${format.money(facts.cost)}`}
          · ${format.seconds(facts.seconds)}${(facts.findings ?? []).length ? html` · <span class="odd">${facts.findings.join(", ")}</span>` : nothing}</small></p>`
      : nothing}
  </article>`;
}

/** @param {Call} call */
function drawCall(call) {
  const listed = call.state === "waiting for approval" && call.approval ? waiting.get(call.approval) : undefined;
  const card = listed?.kind === "input" ? undefined : listed; // what a tool asks has a form, on the page of approvals
  return html`<div class="call ${call.state.replaceAll(" ", "-")}">
    <p><b>${call.name || "…"}</b> <span class="verdict">${icon(MARKS[/** @type {keyof typeof MARKS} */ (call.state)] ?? "dots")} ${call.state}</span>
      ${call.seconds === undefined ? nothing : html`<small>${format.seconds(call.seconds)}</small>`}
      ${call.state === "gathering" ? html`<small>${call.pieces} fragments</small>` : nothing}
      ${call.note ? html`<small class="odd">${call.note}</small>` : nothing}
      ${call.progress ? html`<small>${call.progress}</small>` : nothing}</p>
    <pre tabindex="0">${start(call.text)}</pre>
    ${call.problem ? html`<dl class="why" aria-label="Why it broke">${Object.entries(call.problem).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>` : nothing}
    ${card
      ? html`<form class="decide" aria-label="Decide about ${call.name}" @submit=${(/** @type {SubmitEvent} */ event) => decide(card, event)}>
          <details><summary>${card.safety} · the arguments that are decided about</summary><pre tabindex="0">${format.shown(card.arguments)}</pre></details>
          <label>Reason <input name="reason" maxlength="500" placeholder="for the model, when denied" @keydown=${noSubmit} /></label>
          <button value="approve">Approve</button> <button value="deny" class="quiet">Deny</button></form>`
      : call.state === "waiting for approval"
        ? html`<p><a href="#/approvals">${me?.approve ? "Decide" : "Waits for somebody who may decide"}</a></p>`
        : call.state === "waiting for an answer"
          ? html`<p><a href="#/approvals">Its server asks something: answer</a></p>`
          : nothing}
    ${call.result === undefined ? nothing : html`<pre class="result" tabindex="0" aria-label="Result">${start(call.result)}</pre>`}
    ${(call.images ?? []).map((each) => html`<img src=${each} alt="What ${call.name} returned" />`)}
  </div>`;
}

/** Enter in the reason would press the first button, which approves. @param {KeyboardEvent} event */
function noSubmit(event) {
  if (event.key === "Enter") event.preventDefault();
}

/** Of a long text its beginning: the whole of it is in the run. @param {string} text @param {number} [most] */
const start = (text, most = 4000) => (text.length > most ? `${text.slice(0, most)}… (${format.count(text.length)} characters)` : text);

const MARKS = /** @type {const} */ ({ gathering: "pen", whole: "check", broken: "cross", running: "play", done: "check", failed: "cross", "handed back": "back", "waiting for approval": "pause", "waiting for an answer": "pause" });
