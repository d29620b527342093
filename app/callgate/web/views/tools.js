// @ts-check
// The tools there are, calling one, and the servers they come from.

import { html, nothing, render } from "../lit.js";
import { get } from "../api.js";
import * as format from "../format.js";
import * as callForm from "./call_form.js";
import { fail } from "./shared.js";

export const title = "Tools";

/** @type {HTMLElement} */ let root;
/** @type {any[]} */ let tools = [];
/** @type {any[]} */ let servers = [];
let chosen = "";

/** @param {HTMLElement} main @param {string[]} path */
export function show(main, path) {
  root = main;
  chosen = path[0] ?? "";
  result = null;
  asJson = false;
  load();
  draw();
}

/** @param {string} event */
export function onFeed(event) {
  if (event === "server") load();
}

async function load() {
  try {
    const list = await get("v1/tools?servers=1");
    tools = list.data;
    servers = list.servers ?? [];
  } catch (failure) {
    fail(failure);
  }
  draw();
}

function draw() {
  const tool = tools.find((each) => each.name === chosen);
  render(
    html`<div class=${tool ? "split" : ""}>
      <section aria-label="Tools">
        <table aria-label="Tools">
          <thead><tr><th>Tool</th><th>Source</th><th>Safety</th><th>Approval</th><th>State</th></tr></thead>
          <tbody>
            ${tools.map(
              (each) => html`<tr class=${each.name === chosen ? "chosen" : ""}>
                <td><a href="#/tools/${encodeURIComponent(each.name)}">${each.name}</a><br /><small>${(each.description ?? "").slice(0, 160)}</small></td>
                <td>${each.source}</td><td>${each.safety ?? ""}</td><td>${each.require_approval ? "asks a person" : ""}</td>
                <td>${each.state === "ready" ? "ready" : html`<span class="odd">${each.state}: ${each.reason}</span>`}</td>
              </tr>`,
            )}
          </tbody>
        </table>
        ${tools.length ? nothing : html`<p class="empty">This key may use no tools.</p>`}
        ${servers.length
          ? html`<h2>Servers</h2><table aria-label="Servers"><thead><tr><th>Server</th><th>Kind</th><th>State</th><th class="number">Opened in</th></tr></thead>
              <tbody>${servers.map(
                (each) => html`<tr><td>${each.name}</td><td>${each.kind}</td><td class=${each.state === "ready" ? "" : "odd"}>${each.state}${each.error ? `: ${each.error}` : ""}</td>
                  <td class="number">${each.open_ms === null ? "–" : format.seconds(each.open_ms / 1000)}</td></tr>`,
              )}</tbody></table>`
          : nothing}
      </section>
      ${tool ? detail(tool) : nothing}
    </div>`,
    root,
  );
}

/** What came of the call of the chosen tool. @type {any} */ let result = null;
/** @type {AbortController | null} */ let calling = null;
let asJson = false;

function detail(/** @type {any} */ tool) {
  const fields = tool.parameters && !asJson ? callForm.form(tool.parameters) : null;
  return html`<section aria-label="Tool ${tool.name}" class="detail">
    <h3>${tool.name}</h3>
    <p>${tool.description}</p>
    <details><summary>Schema</summary><pre>${JSON.stringify(tool.parameters, null, 2)}</pre></details>
    ${tool.state === "ready"
      ? html`<form aria-label="Call ${tool.name}" @submit=${(/** @type {SubmitEvent} */ event) => call(event, tool)}>
          ${fields ??
          html`<label>Arguments <textarea data-editor rows="8" spellcheck="false">${callForm.template(tool.parameters)}</textarea></label>`}
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

function toggle() {
  asJson = !asJson;
  draw();
}

function outcome(/** @type {any} */ told) {
  const good = told.outcome === "returned";
  const facts = [told.flaw, ...(told.repairs ?? []), told.cut_bytes ? `${format.bytes(told.cut_bytes)} cut` : ""].filter(Boolean);
  return html`<div role="status" aria-label="Result">
    <p><b class=${good ? "" : "odd"}>${good ? "✓" : "✗"} ${told.outcome}</b> ${told.ms === undefined ? "" : format.seconds(told.ms / 1000)}
      ${facts.join(", ")} <a href="#/run/${told.run}">${told.run}</a></p>
    <pre>${told.text}</pre>
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
    const told = await get(path, { method: "POST", json: { arguments: given }, signal: controller.signal });
    if (chosen === tool.name) result = told;
  } catch (failure) {
    if (!controller.signal.aborted) fail(failure);
  }
  calling = null;
  draw();
}
