// @ts-check
// What several pages use.

import { html, nothing, render } from "../lit.js";

/** @param {unknown} failure */
export const fail = (failure) => window.dispatchEvent(new CustomEvent("report", { detail: failure }));

/**
 * A table that scrolls by itself where it is too wide.
 * @param {string} label @param {string[]} heads `#` begins those of numbers @param {unknown} rows @param {string} [kind]
 */
export const table = (label, heads, rows, kind) => html`<div class="scroll" tabindex="0" role="group" aria-label="List: ${label}"><table class=${kind ?? nothing} aria-label=${label}>
  <thead><tr>${heads.map((head) => html`<th class=${head[0] === "#" ? "number" : nothing}>${head.replace("#", "")}</th>`)}</tr></thead>
  <tbody>${rows}</tbody></table></div>`;

/** @param {string | (() => string)} text @param {string} [label] */
export function copyButton(text, label = "Copy") {
  const copy = async (/** @type {Event} */ event) => {
    const button = /** @type {HTMLButtonElement} */ (event.currentTarget);
    const all = typeof text === "string" ? text : text();
    if (!navigator.clipboard) {
      // which browsers give to https and to this machine alone
      question(label, html`<label class="wide">To be copied by hand <textarea readonly rows="12">${all}</textarea></label>`, "Done");
      return;
    }
    await navigator.clipboard.writeText(all);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1500);
  };
  return html`<button type="button" class="quiet" @click=${copy}>${label}</button>`;
}

/** @param {string} name @param {string} text @param {string} type */
export function download(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** A shell line that makes the same request; the key stays a variable. @param {unknown} body @param {string} [path] */
export function asCurl(body, path = "v1/chat/completions") {
  const text = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl ${new URL(path, document.baseURI)} \\
  -H "Authorization: Bearer $CALLGATE_KEY" -H 'Content-Type: application/json' \\
  -d '${text}'`;
}

/** A value as Python writes it. @param {any} value @param {string} [indent] @returns {string} */
function python(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const parts = Array.isArray(value)
    ? value.map((each) => python(each, inner))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${python(each, inner)}`);
  return parts.length ? `${open}\n${parts.map((part) => `${inner}${part},\n`).join("")}${indent}${close}` : open + close;
}

/** @param {any} body a chat request, as the official client makes it */
export function asPython(body) {
  const fields = Object.entries(body).map(([name, value]) => `    ${name}=${python(value, "    ")},\n`);
  return `import os
from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(String(new URL("v1", document.baseURI)))}, api_key=os.environ.get("CALLGATE_KEY", "none"))
answer = client.chat.completions.create(
${fields.join("")})
print(answer${body.stream ? "" : ".choices[0].message.content"})
`;
}

/** A line at the edge of the page, for a while. @param {string} text */
export const notice = (text) => fail(text);

/**
 * Asks in a dialog. @param {string} title @param {unknown} fields @param {string} yes
 * @returns {Promise<Record<string, string> | null>} what was filled in; null where it was left
 */
export function question(title, fields, yes) {
  return new Promise((resolve) => {
    const dialog = document.createElement("dialog");
    dialog.setAttribute("aria-label", title);
    /** @type {Record<string, string> | null} */ let given = null;
    const take = (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      given = Object.fromEntries([...new FormData(/** @type {HTMLFormElement} */ (event.target))].map(([name, value]) => [name, String(value)]));
      dialog.close();
    };
    render(
      html`<form @submit=${take}>
        <h2>${title}</h2>
        ${fields}
        <menu><li><button type="button" class="quiet" @click=${() => dialog.close()}>Cancel</button></li><li><button>${yes}</button></li></menu>
      </form>`,
      dialog,
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(given);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
