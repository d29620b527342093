// @ts-check
// The tools there are, and their servers.

import { html, nothing, render } from "../lit.js";
import { get } from "../api.js";
import * as format from "../format.js";
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

function detail(/** @type {any} */ tool) {
  return html`<section aria-label="Tool ${tool.name}" class="detail">
    <h3>${tool.name}</h3>
    <p>${tool.description}</p>
    <p><small>To call it: <code>callgate tools call ${tool.name} '{…}'</code></small></p>
    <details><summary>Schema</summary><pre>${JSON.stringify(tool.parameters, null, 2)}</pre></details>
  </section>`;
}
