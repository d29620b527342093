// @ts-check
// Models: how each is reached, and how it is.

import { html, nothing, render } from "../lit.js";
import { get } from "../api.js";
import * as format from "../format.js";
import { fail } from "./shared.js";

export const title = "Models";

/** @type {HTMLElement} */ let root;
/** @type {any[]} */ let models = [];

/** @param {HTMLElement} main */
export function show(main) {
  root = main;
  models = [];
  load();
  draw();
}

async function load() {
  try {
    const list = await get("v1/models");
    models = await Promise.all(list.data.map((/** @type {any} */ model) => get(`v1/models/${encodeURIComponent(model.id)}`)));
  } catch (failure) {
    fail(failure);
  }
  draw();
}

function draw() {
  render(
    html`<table aria-label="Models">
        <thead><tr><th>Model</th><th>Lane</th><th>Host</th><th>Calls tools</th><th>State</th></tr></thead>
        <tbody>
          ${models.flatMap((model) => {
            const deployments = model.x_callgate?.deployments ?? [{}];
            return deployments.map(
              (/** @type {any} */ each, /** @type {number} */ place) => html`<tr>
                <td>${place ? "" : model.id}</td>
                <td>${each.lane ?? "–"}${each.why ? html` <small>${each.why}</small>` : nothing}</td>
                <td>${each.host ?? "–"}</td>
                <td>${each.tool_calling ? `${each.tool_calling.format} (${each.tool_calling.decided_by})` : "not asked yet"}</td>
                <td>${each.cooldown_seconds ? html`<span class="odd">left alone for ${format.seconds(each.cooldown_seconds)}</span>` : "in use"}</td>
              </tr>`,
            );
          })}
        </tbody>
      </table>
      ${models.length ? nothing : html`<p class="empty">Loading …</p>`}
      <p><small>“Left alone”: a deployment that failed three times running is not asked for a while.</small></p>`,
    root,
  );
}
