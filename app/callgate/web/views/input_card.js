// @ts-check
// What a running tool asks a person: a form to fill in, or a page to open.

import { html, nothing } from "../lit.js";
import * as format from "../format.js";
import * as callForm from "./call_form.js";
import { fail } from "./shared.js";

/**
 * The inside of a card. Nothing is filled in but the defaults of the form, and no page is opened but by a click on its link.
 * @param {any} call @param {{over: string, sending: boolean, seconds: number, answer: (decision: string, content?: any) => void}} state
 */
export function inputCard(call, state) {
  /** @param {SubmitEvent} event */
  const submit = (event) => {
    event.preventDefault();
    const said = /** @type {HTMLButtonElement | null} */ (event.submitter)?.value;
    if (said === "decline") state.answer("decline");
    if (said !== "answer") return;
    try {
      state.answer("answer", call.mode === "form" ? callForm.read(/** @type {HTMLFormElement} */ (event.target), call.schema) : undefined);
    } catch (failure) {
      fail(failure);
    }
  };
  return html`<h3><b>${call.server}</b> asks, while running ${call.tool}</h3>
    <p>for <b>${call.caller}</b> · <a href="#/run/${encodeURIComponent(call.run)}?call=${encodeURIComponent(call.call)}">${call.run}</a> · since ${format.time(call.since)}</p>
    <p class="asked">${call.message}</p>
    ${state.over
      ? html`<p role="status">${state.over}</p>`
      : html`<form aria-label="What ${call.server} asks" class="question" autocomplete="off" @submit=${submit}>
          ${call.mode === "form" ? fields(call) : page(call)}
          <menu>
            <button value="answer" ?disabled=${state.sending}>${call.mode === "form" ? "Send the answer" : "I have opened it"}</button>
            <button value="decline" class="quiet" formnovalidate ?disabled=${state.sending}>Decline</button>
            <small>${state.seconds} s left</small>
          </menu>
        </form>`}
    <details><summary>The call that asks</summary><pre tabindex="0">${format.shown(call.arguments)}</pre></details>`;
}

function fields(/** @type {any} */ call) {
  const secrets = call.secret_fields ?? [];
  return html`${secrets.length
      ? html`<p class="odd" role="alert">${secrets.join(", ")}: this looks like a secret. Servers must not ask for one in a form; decline unless you know why.</p>`
      : nothing}
    ${callForm.form(call.schema, secrets)}`;
}

function page(/** @type {any} */ call) {
  return html`<p>It wants a page to be opened, of the host <b class="host">${call.host}</b></p>
    <p><a href=${call.url} target="_blank" rel="noopener noreferrer">${call.url}</a></p>`;
}
