// @ts-check
// The tools there are, their servers, and a form to call one.

import { html, nothing, render } from "../lit.js";
import { get } from "../api.js";
import * as format from "../format.js";
import { fail } from "./shared.js";

export const title = "Tools";

/** @type {HTMLElement} */ let root;
/** @type {any[]} */ let tools = [];
/** @type {any[]} */ let servers = [];
let chosen = "";
let written = "{}";
let asJson = false;
let problem = "";
/** @type {any} */ let answer = null;
let isRunning = false;

/** @param {HTMLElement} main @param {string[]} path */
export function show(main, path) {
  root = main;
  chosen = path[0] ?? "";
  answer = null;
  problem = "";
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
    const tool = tools.find((each) => each.name === chosen);
    if (tool && written === "{}") written = JSON.stringify(example(tool.parameters ?? {}), null, 2);
    asJson = tool ? fields(tool.parameters) === null : false;
  } catch (failure) {
    fail(failure);
  }
  draw();
}

/** What a form can ask for; null where only the JSON editor is sure to be right. @param {any} schema */
function fields(schema) {
  if (!schema || schema.type !== "object" || schema.anyOf || schema.oneOf || schema.allOf || schema.$ref) return null;
  const properties = Object.entries(schema.properties ?? {});
  const isSimple = ([, each] = /** @type {[string, any]} */ (["", {}])) =>
    each && !each.$ref && !each.anyOf && !each.oneOf && (each.enum || ["string", "number", "integer", "boolean"].includes(each.type));
  return properties.every((each) => isSimple(/** @type {[string, any]} */ (each))) ? properties : null;
}

/** @param {any} schema */
function example(schema) {
  /** @type {Record<string, any>} */ const made = {};
  for (const [name, each] of Object.entries(/** @type {Record<string, any>} */ (schema.properties ?? {})))
    if (each?.default !== undefined) made[name] = each.default;
    else if ((schema.required ?? []).includes(name))
      made[name] = each.enum?.[0] ?? { string: "", number: 0, integer: 0, boolean: false, array: [], object: {} }[/** @type {"string"} */ (each.type)] ?? null;
  return made;
}

async function call(/** @type {SubmitEvent} */ event, /** @type {any} */ tool) {
  event.preventDefault();
  try {
    JSON.parse(written);
  } catch (failure) {
    problem = `This is no JSON: ${/** @type {Error} */ (failure).message}`;
    draw();
    return;
  }
  if (tool.safety !== "read_only" && !confirm(`${tool.name} may change something (${tool.safety}). Call it?`)) return;
  problem = "";
  answer = null;
  isRunning = true;
  draw();
  try {
    answer = await get(`v1/tools/${encodeURIComponent(tool.name)}/call`, { method: "POST", json: { arguments: JSON.parse(written) } });
  } catch (failure) {
    problem = /** @type {Error} */ (failure).message;
    if (/** @type {any} */ (failure).status === 401) fail(failure);
  }
  isRunning = false;
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
      ${tool ? form(tool) : nothing}
    </div>`,
    root,
  );
}

function form(/** @type {any} */ tool) {
  const known = asJson ? null : fields(tool.parameters);
  let value = /** @type {Record<string, any>} */ ({});
  try {
    value = JSON.parse(written);
  } catch {
    // shown in the editor as it is
  }
  const set = (/** @type {string} */ name, /** @type {any} */ now) => {
    const changed = { ...value, [name]: now };
    if (now === undefined || now === "" || Number.isNaN(now)) delete changed[name];
    written = JSON.stringify(changed, null, 2);
    draw();
  };
  return html`<section aria-label="Call ${tool.name}" class="detail">
    <h3>${tool.name}</h3>
    <p>${tool.description}</p>
    ${tool.state === "ready"
      ? html`<form @submit=${(/** @type {SubmitEvent} */ event) => call(event, tool)}>
          ${known === null
            ? html`<label>Arguments (JSON) <textarea rows="10" spellcheck="false" .value=${written} @input=${(/** @type {any} */ e) => (written = e.target.value)}></textarea></label>`
            : known.map(([name, each]) => field(name, /** @type {any} */ (each), value[name], (tool.parameters.required ?? []).includes(name), set))}
          <label class="check"><input type="checkbox" .checked=${known === null} ?disabled=${fields(tool.parameters) === null} @change=${(/** @type {any} */ e) => ((asJson = e.target.checked), draw())} /> write JSON</label>
          <button ?disabled=${isRunning}>${isRunning ? "Running …" : "Call"}</button>
        </form>`
      : nothing}
    ${problem ? html`<p class="odd" role="alert">${problem}</p>` : nothing}
    ${answer ? html`<h4>${answer.outcome === "returned" ? "✓ returned" : `✗ ${answer.outcome}`} <small>${format.seconds(answer.seconds)}</small></h4><pre class="result">${answer.text}</pre>` : nothing}
    <details><summary>Schema</summary><pre>${JSON.stringify(tool.parameters, null, 2)}</pre></details>
  </section>`;
}

function field(/** @type {string} */ name, /** @type {any} */ schema, /** @type {any} */ value, /** @type {boolean} */ required, /** @type {(name: string, value: any) => void} */ set) {
  const label = html`${name}${required ? " *" : ""} ${schema.description ? html`<small>${schema.description}</small>` : nothing}`;
  if (schema.enum)
    return html`<label>${label}<select ?required=${required} @change=${(/** @type {any} */ e) => set(name, e.target.selectedIndex ? schema.enum[e.target.selectedIndex - 1] : undefined)}>
      <option value="">–</option>${schema.enum.map((/** @type {any} */ each) => html`<option ?selected=${each === value}>${each}</option>`)}</select></label>`;
  if (schema.type === "boolean")
    return html`<label class="check"><input type="checkbox" .checked=${value === true} @change=${(/** @type {any} */ e) => set(name, e.target.checked)} /> ${label}</label>`;
  if (schema.type === "string")
    return html`<label>${label}<input .value=${value ?? ""} ?required=${required} @change=${(/** @type {any} */ e) => set(name, e.target.value)} /></label>`;
  return html`<label>${label}<input type="number" step=${schema.type === "integer" ? "1" : "any"} .value=${value ?? ""} ?required=${required} @change=${(/** @type {any} */ e) => set(name, e.target.valueAsNumber)} /></label>`;
}
