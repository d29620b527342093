// @ts-check
// Keys: what one's own may and has left, and for operators all of them: made, limited, revoked.

import { html, nothing, render } from "../lit.js";
import { askWho, get, me, setKey } from "../api.js";
import * as format from "../format.js";
import { copyButton, fail, notice, question, table } from "./shared.js";

export const title = "Keys";

const LIMITS = {
  requests_per_minute: "Requests a minute",
  tokens_per_minute: "Tokens a minute",
  parallel: "Requests at once",
  budget_per_day: "US dollars a day",
  budget_per_month: "US dollars a month",
};

/** @type {HTMLElement} */ let root;
/** @type {any[] | null} */ let keys = null;
/** The key that was just made, which is shown this once. @type {any} */ let made = null;
let state = "Loading …";

/** @param {HTMLElement} main */
export function show(main) {
  root = main;
  keys = null;
  made = null;
  load();
  draw();
}

/** @param {string} event */
export function onFeed(event) {
  if (event === "back") load();
}

async function load() {
  try {
    await askWho(); // anew: what is left of its limits changes
    keys = me.admin ? (await get("admin/keys")).data : null;
    state = "There are no keys: whoever reaches this server may use it.";
  } catch (failure) {
    state = /** @type {Error} */ (failure).message;
    if (/** @type {any} */ (failure).status === 401) fail(failure);
  }
  draw();
}

function draw() {
  render(
    html`<h2 class="visually-hidden">Keys</h2>
      ${me && !me.anonymous ? own() : nothing}
      ${me?.admin
        ? html`<h2>All keys</h2>
          <menu><button type="button" @click=${make}>Make a key</button></menu>
          ${made ? fresh() : nothing}
          ${keys?.length ? table("Keys", ["Key", "Models", "Tools", "Rights", "Limits", "Ends", "#Today", "#This month", ""], keys.map(line), "keys") : html`<p class="empty" role="status">${state}</p>`}
          <p><small>Keys of the config are changed in the config. Of a key only its hash is kept: who loses one is made another.</small></p>`
        : me
          ? html`<p class="empty">Keys are made by who operates the server (a key with <code>admin: on</code>).</p>`
          : html`<p class="empty" role="status">${state}</p>`}`,
    root,
  );
}

/** What the asking key may, and what is left of it. */
function own() {
  const limits = Object.entries(me.limits ?? {});
  return html`<section aria-label="This key" class="card"><h3>${me.name} <small>this key</small></h3>
    <dl>
      <dt>models</dt><dd>${me.models.join(", ") || "none"}</dd><dt>tools</dt><dd>${me.tools.join(", ") || "none"}</dd>
      <dt>rights</dt><dd>${rights(me).join(", ") || "none beside asking"}</dd>
      <dt>spent</dt><dd>${me.spent ? `${format.money(me.spent.day)} today, ${format.money(me.spent.month)} this month` : "not known now"}</dd>
      ${limits.map(([name, value]) => html`<dt>${LIMITS[/** @type {keyof typeof LIMITS} */ (name)] ?? name}</dt>
        <dd>${name.startsWith("budget") ? format.money(value) : format.count(value)}${me.left?.[name] === undefined ? "" : `, ${format.money(me.left[name])} left`}
          ${me.left?.[name] === undefined ? nothing : html`<meter min="0" max=${value || 1} value=${value - me.left[name]} aria-label="spent of ${name}"></meter>`}</dd>`)}
      ${limits.length ? nothing : html`<dt>limits</dt><dd>none</dd>`}
    </dl></section>`;
}

const rights = (key) => [key.approve ? "approve" : "", key.admin ? "admin" : "", key.see === "none" ? "" : `see ${key.see}`].filter(Boolean);

/** A key that was just made. */
const fresh = () => html`<section class="card" role="status" aria-label="The new key"><h3>${made.name}</h3>
  <p>This is its key. It is shown this once, and kept nowhere.</p>
  <pre tabindex="0">${made.key}</pre>
  ${made.notes.map((/** @type {string} */ each) => html`<p class="odd">${each}</p>`)}
  <menu>${copyButton(made.key)} <button type="button" class="quiet" @click=${() => ((made = null), draw())}>Done</button></menu></section>`;

function line(key) {
  const limits = Object.entries(key.limits ?? {}).filter(([name]) => !name.startsWith("budget"));
  const isOver = key.revoked_at || (key.expires && key.expires <= new Date().toISOString());
  return html`<tr class=${isOver ? "over" : ""}><td>${key.name}<small>${key.kept_in}</small></td>
    <td>${(key.models ?? []).join(", ") || "–"}</td><td>${(key.tools ?? []).join(", ") || "–"}</td>
    <td>${rights(key).join(", ") || "–"}</td><td>${limits.length ? limits.map(([name, value]) => html`<small>${LIMITS[/** @type {keyof typeof LIMITS} */ (name)] ?? name}: ${value}</small>`) : "–"}</td>
    <td>${key.revoked_at ? html`<span class="odd">revoked</span>` : (key.expires ?? "never")}</td>
    <td class="number">${spent(key.spent?.day, key.limits?.budget_per_day)}</td><td class="number">${spent(key.spent?.month, key.limits?.budget_per_month)}</td>
    <td>${key.kept_in === "store" && !key.revoked_at
      ? html`<button type="button" class="quiet" aria-label="Limit ${key.name}" @click=${() => limit(key)}>Limit</button>
          ${key.name === me.name ? nothing : html`<button type="button" class="quiet" aria-label="Revoke ${key.name}" @click=${() => revoke(key)}>Revoke</button>`}`
      : nothing}</td></tr>`;
}

/** @param {number | undefined} spent @param {number | undefined} budget */
const spent = (spent, budget) => `${format.money(spent ?? 0)} ${budget === undefined ? "(no budget)" : `of ${format.money(budget)}`}`;

/** @param {Record<string, unknown>} [values] */
const limitFields = (values = {}) =>
  Object.entries(LIMITS).map(([name, words]) => html`<label>${words} <input name=${name} type="number" min=${name.startsWith("budget") ? "0" : "1"} step=${name.startsWith("budget") ? "any" : "1"} .value=${String(values[name] ?? "")} placeholder="no limit" /></label>`);

const names = (/** @type {string} */ text) => text.split(/[\s,]+/).filter(Boolean);

async function make() {
  const isFirst = me.anonymous;
  const given = await question(
    "Make a key",
    html`${isFirst ? html`<p class="odd">This is the first key: from then on this server answers nobody without one. This page goes on with it.</p>` : nothing}
      <label>Whose it is <input name="name" required pattern="[A-Za-z0-9_.@\\-]+" autofocus /></label>
      <label>Models <input name="models" .value=${(me.models ?? ["*"]).join(", ")} /></label>
      <label>Tools <input name="tools" .value=${(me.tools ?? ["*"]).join(", ")} /></label>
      <label>Sees runs <select name="see">${["none", "own", "all"].map((each) => html`<option ?selected=${each === "own"}>${each}</option>`)}</select></label>
      <label class="check"><input name="approve" type="checkbox" .checked=${isFirst} /> decides about calls that wait</label>
      ${isFirst ? html`<input type="hidden" name="admin" value="on" /><p><small>It operates the server, as the first key has to.</small></p>` : html`<label class="check"><input name="admin" type="checkbox" /> operates the server (admin)</label>`}
      ${limitFields()}
      <label>Ends <input name="expires" type="date" /></label>`,
    "Make it",
  );
  if (!given) return;
  const { name, models, tools, see, approve, admin, expires, ...limits } = given;
  const json = { name, models: names(models), tools: names(tools), see, approve: approve === "on", admin: admin === "on", ...numbers(limits), ...(expires && { expires }) };
  try {
    made = await get("admin/keys", { method: "POST", json });
    if (made.first) {
      setKey(made.key, false);
      await askWho();
      window.dispatchEvent(new CustomEvent("key"));
    }
    load();
  } catch (failure) {
    fail(failure);
  }
}

/** @param {Record<string, string>} texts those that say something, as numbers */
const numbers = (texts) => Object.fromEntries(Object.entries(texts).filter(([, text]) => text !== "").map(([name, text]) => [name, Number(text)]));

async function limit(key) {
  const given = await question(`Limits of ${key.name}`, html`${limitFields(key.limits)}<p><small>An empty field is no limit.</small></p>`, "Set them");
  if (!given) return;
  const json = Object.fromEntries(Object.keys(LIMITS).map((name) => [name, given[name] === "" ? null : Number(given[name])]));
  await change(key, { method: "PATCH", json }, `${key.name} has these limits from its next request on.`);
}

async function revoke(key) {
  if (!(await question(`Revoke ${key.name}?`, html`<p>Its clients are refused from their next request on. It cannot be undone, and its name is not given again.</p>`, "Revoke"))) return;
  await change(key, { method: "DELETE" }, `${key.name} is revoked.`);
}

/** @param {any} key @param {RequestInit & {json?: unknown}} options @param {string} said */
async function change(key, options, said) {
  try {
    await get(`admin/keys/${encodeURIComponent(key.name)}`, options);
    notice(said);
  } catch (failure) {
    fail(failure);
  }
  load();
}
