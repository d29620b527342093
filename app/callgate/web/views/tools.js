// @ts-check
// The tools there are, calling one, and the servers they come from.

import { html, nothing, render } from "../lit.js";
import { get, me } from "../api.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import * as callForm from "./call_form.js";
import * as logins from "./logins.js";
import { fail, table } from "./shared.js";

export const title = "Tools";

/** @type {HTMLElement} */ let root;
/** @type {any[]} */ let tools = [];
/** @type {any[]} */ let servers = [];
/** Tools that wait until somebody accepts what they say of themselves. @type {any[]} */ let held = [];
/** @type {any[]} */ let loginList = [];
/** With how many tools each is offered, and what these cost. @type {any[]} */ let models = [];
/** The chosen tool as a model gets it. @type {any} */ let sent = null;
let sentTo = "";
let state = "Loading …";
let chosen = "";

/** @param {HTMLElement} main @param {string[]} path */
export function show(main, path) {
  root = main;
  chosen = path[0] ?? "";
  result = null;
  asJson = false;
  sent = null;
  load().then(showSent);
  draw();
}

/** @param {string} event */
export function onFeed(event) {
  if (event === "server" || event === "back") load();
  if (event === "who") draw();
}

async function showSent() {
  const [tool, model] = [chosen, sentTo];
  sent = null;
  if (tool && model)
    try {
      const answer = (await get(`v1/tools/${encodeURIComponent(tool)}?model=${encodeURIComponent(model)}`)).sent ?? null;
      if (tool === chosen && model === sentTo) sent = answer;
    } catch (failure) {
      if (/** @type {any} */ (failure).status !== 404) fail(failure); // there is no such tool, which the list says
    }
  draw();
}

async function load() {
  try {
    const list = await get("v1/tools?servers=1&models=1");
    tools = list.data;
    models = list.models;
    if (!models.some((each) => each.id === sentTo)) sentTo = models[0]?.id ?? "";
    servers = list.servers ?? [];
    loginList = (await get("v1/logins")).data;
    held = tools.some((each) => each.state === "held") && me?.admin ? (await get("admin/held-tools")).data : [];
    state = "There are no tools, or this key may use none.";
  } catch (failure) {
    fail(failure);
    state = /** @type {Error} */ (failure).message;
  }
  logins.follow(loginList, () => root.isConnected && load());
  draw();
}

function draw() {
  const tool = tools.find((each) => each.name === chosen);
  render(
    html`<div class=${tool ? "split" : ""}>
      <section aria-label="List of tools">
        ${table(
          "Tools",
          ["Tool", "Source", "Safety", "Approval", "#≈ Tokens", "State"],
          tools.map(
            (each) => html`<tr class=${each.name === chosen ? "chosen" : ""}>
              <td><a href="#/tools/${encodeURIComponent(each.name)}">${each.name}</a><br /><small>${(each.description ?? "").slice(0, 160)}</small></td>
              <td>${each.source}</td><td>${each.safety ?? ""}</td><td>${each.require_approval ? "asks a person" : ""}</td>
              <td class="number">${each.prompt_tokens ? format.count(each.prompt_tokens) : ""}</td>
              <td>${each.state === "ready" ? "ready" : html`<span class="odd">${each.state ?? "name clash"}: ${each.reason ?? Object.entries(each.tools ?? {}).map((pair) => pair.join(" is ")).join(", ")}</span>`}</td>
            </tr>`,
          ),
        )}
        ${tools.length
          ? html`<p><small>${costs()}${tool ? "" : " Choose a tool to see its schema as a model gets it, and to call it."}</small></p>`
          : html`<p class="empty" role="status">${state}</p>`}
        ${held.length ? html`<h2>Held back</h2>${held.map(heldTool)}` : nothing}
        ${servers.length
          ? html`<h2>Servers</h2>${table(
              "Servers",
              ["Server", "Kind", "State", "#Failures", "#Opened in"],
              servers.map(
                (each) => html`<tr><td>${each.name}</td><td>${each.kind}</td>
                  <td class=${each.state === "ready" ? "" : "odd"}>${each.state}${each.since ? ` since ${format.moment(each.since)}` : ""}${each.error ? `: ${each.error}` : ""}</td>
                  <td class="number">${each.failures}</td><td class="number">${each.open_ms === null ? "–" : format.seconds(each.open_ms / 1000)}</td></tr>`,
              ),
            )}`
          : nothing}
        ${loginList.length ? logins.section(loginList, load) : nothing}
      </section>
      ${tool ? detail(tool) : nothing}
    </div>`,
    root,
  );
}

/** What is different about a tool that is held, and the button that takes it. @param {any} tool */
const heldTool = (tool) => html`<article class="card" aria-label="${tool.server}/${tool.tool} is held back">
  <h3>${tool.server} / ${tool.tool} <small>${tool.why === "new" ? "is new" : "says something else than when it was accepted"}</small></h3>
  <pre tabindex="0" class="difference">${tool.difference.map(
    (/** @type {string} */ line) => html`<span class=${line.startsWith("-") ? "gone" : line.startsWith("+") ? "added" : ""}>${line}\n</span>`,
  )}</pre>
  <button @click=${() => accept(tool)}>Accept it as it is</button>
</article>`;

async function accept(/** @type {any} */ { server, tool, digest }) {
  try {
    await get("admin/held-tools", { method: "POST", json: { server, tool, digest } });
  } catch (failure) {
    fail(failure);
  }
  load();
}

/** What came of the call of the chosen tool. @type {any} */ let result = null;
/** @type {AbortController | null} */ let calling = null;
let asJson = false;

/** What models read of tools with every request; together those that read as much. */
function costs() {
  /** @type {Map<string, string[]>} */ const alike = new Map();
  for (const { id, tools, prompt_tokens, hidden, search_saves, search_would_save } of models) {
    let cost = `${format.many(tools, "tool")}, ≈ ${format.count(prompt_tokens)} tokens`;
    if (hidden) cost += ` (${format.count(hidden)} hidden behind search, which saves ${format.count(search_saves)})`;
    if (search_would_save) cost += ` (tool_search: auto would save ${format.count(search_would_save)})`;
    alike.set(cost, [...(alike.get(cost) ?? []), id]);
  }
  const said = [...alike].map(([cost, ids]) => `${ids.length > 4 ? `${ids.length} models` : ids.join(", ")}: ${cost}`);
  return said.length ? `What a model is offered, it reads with every request. ${said.join("; ")}.` : "";
}

function detail(tool) {
  const fields = tool.parameters && !asJson ? callForm.form(tool.parameters) : null;
  return html`<section aria-label="Tool ${tool.name}" class="detail">
    <h3>${tool.name}</h3>
    <p>${tool.description}</p>
    ${tool.reason ? html`<p class="odd">${tool.reason}</p>` : nothing}
    ${tool.parameters ? html`<details><summary>Schema</summary><pre tabindex="0">${JSON.stringify(tool.parameters, null, 2)}</pre></details>` : nothing}
    ${tool.parameters && models.length ? schemaAsSent() : nothing}
    ${me && !me.admin ? html`<p class="empty">To call a tool from here needs a key with <code>admin: on</code>.</p>` : nothing}
    ${tool.state === "ready" && me?.admin !== false
      ? html`<form aria-label="Call ${tool.name}" @submit=${(/** @type {SubmitEvent} */ event) => call(event, tool)}>
          ${fields ??
          html`<label class="wide">Arguments, as a model might write them <textarea data-editor rows="8" spellcheck="false">${callForm.template(tool.parameters)}</textarea></label>`}
          <menu>
            ${callForm.form(tool.parameters)
              ? html`<button type="button" class="quiet" @click=${toggle}>${asJson ? "As a form" : "As JSON"}</button>`
              : nothing}
            ${calling ? html`<button type="button" @click=${() => calling?.abort()}>Stop</button>` : html`<button>Call it</button>`}
          </menu>
        </form>`
      : nothing}
    ${result ? outcome(result) : nothing}
  </section>`;
}

const schemaAsSent = () => html`<details open>
  <summary>As sent to a model${sent ? ` (${sent.dialect === "full" ? "all of it" : `${sent.dialect} dialect`})` : ""}</summary>
  <label>Model <select @change=${(event) => ((sentTo = event.target.value), showSent())}>
    ${models.map((each) => html`<option ?selected=${each.id === sentTo}>${each.id}</option>`)}
  </select></label>
  ${sent
    ? html`${sent.losses.length ? html`<p class="odd">Not said to it, but checked all the same: ${sent.losses.join("; ")}</p>` : nothing}
        <pre tabindex="0">${JSON.stringify(sent.parameters, null, 2)}</pre>`
    : html`<p class="empty">Loading …</p>`}
</details>`;

function toggle() {
  asJson = !asJson;
  draw();
}

function outcome(told) {
  const good = told.outcome === "returned";
  const facts = [told.flaw, ...(told.repairs ?? []), told.cut_bytes ? `${format.bytes(told.cut_bytes)} cut` : ""].filter(Boolean);
  return html`<div role="status" aria-label="Result">
    <p><b class=${good ? "" : "odd"}>${icon(good ? "check" : "cross")} ${told.outcome}</b> ${told.ms === undefined ? "" : format.seconds(told.ms / 1000)}
      ${facts.join(", ")} <a href="#/run/${told.run}">${told.run}</a></p>
    <pre tabindex="0">${told.text}</pre>
    ${(told.images ?? []).map((/** @type {string} */ each) => html`<img src=${each} alt="What the tool returned" />`)}
  </div>`;
}

/** @param {SubmitEvent} event @param {any} tool */
async function call(event, tool) {
  event.preventDefault();
  const element = /** @type {HTMLFormElement} */ (event.target);
  let given;
  try {
    const editor = /** @type {HTMLTextAreaElement | null} */ (element.querySelector("textarea[data-editor]"));
    given = editor ? editor.value : callForm.read(element, tool.parameters);
  } catch (failure) {
    fail(failure);
    return;
  }
  if (tool.safety !== "read_only" && !confirm(`${tool.name} is not read-only (${tool.safety}). Run it?`)) return;
  const controller = (calling = new AbortController());
  result = null;
  draw();
  try {
    const path = `v1/tools/${encodeURIComponent(tool.name)}/call`;
    const told = await get(path, { method: "POST", json: { arguments: given }, headers: { "x-callgate-record": "own" }, signal: controller.signal });
    if (chosen === tool.name) result = told;
  } catch (failure) {
    if (!controller.signal.aborted) fail(failure);
  }
  calling = null;
  draw();
}
