// @ts-check
// Logging in to the servers of tools: whose login each is, and the address that a person opens to make it.

import { html, nothing } from "../lit.js";
import { send } from "../api.js";
import { copyButton, fail, table } from "./shared.js";

/** How often it is looked whether a login that was begun here is done: not every key may follow the feed. */
const LOOK_MS = 2000;

/** What was begun in this tab, by server and user, and whether somebody was logged in then. @type {Map<string, {login: any, wasIn: boolean, until: number}>} */
const begun = new Map();
/** @type {ReturnType<typeof setTimeout> | undefined} */
let looking;

const place = (/** @type {any} */ login) => `${login.server}\n${login.user ?? ""}`;
const WORDS = { ok: "logged in", needs_login: "nobody is logged in", needs_scopes: "its login does not reach far enough" };

/** Whose login it is. @param {any} login */
const owner = (login) =>
  login.for_all_keys ? html`<b>all keys</b>: whoever may use its tools acts as this login` : login.user ? `user ${login.user} of key ${login.key}` : `key ${login.key ?? "none"}`;

/** Whether a card is shown for a login. @param {any} login */
const isOpen = (login) => {
  const own = begun.get(place(login));
  return own !== undefined && own.until > Date.now() && (own.wasIn || login.state !== "ok");
};

/**
 * The logins that concern this key.
 * @param {any[]} logins @param {() => void} reload
 */
export const section = (logins, reload) => html`<h2>Logins</h2>
  ${table(
    "Logins",
    ["Server", "For", "State", ""],
    logins.map(
      (login) => html`<tr>
        <td>${login.server}</td>
        <td>${owner(login)}</td>
        <td class=${login.state === "ok" ? "" : "odd"}>${WORDS[/** @type {keyof WORDS} */ (login.state)] ?? login.state}${login.issuer ? html` at ${login.issuer}` : nothing}${login.missing_scopes.length ? html`: it wants ${login.missing_scopes.join(", ")} as well` : nothing}</td>
        <td>${login.may_begin
          ? html`<button class=${login.state === "ok" ? "quiet" : ""} @click=${() => begin(login, reload)}>${login.state === "ok" ? "Log in again" : "Log in"}</button>`
          : nothing}
          ${login.may_begin && login.state !== "needs_login" ? html`<button class="quiet" @click=${() => logout(login, reload)}>Log out</button>` : nothing}</td>
      </tr>`,
    ),
  )}
  ${logins.filter(isOpen).map((login) => card(begun.get(place(login))?.login))}`;

/** Look again while a login may be under way. @param {any[]} logins @param {() => void} reload */
export function follow(logins, reload) {
  clearTimeout(looking);
  if (logins.some((login) => isOpen(login) && login.state !== "ok")) looking = setTimeout(reload, LOOK_MS);
}

/** The address of a login, whole, before anybody opens it. @param {any} login */
export const card = (login) => html`<article class="card" aria-label="Log in to ${login.server}">
  <h3>Log in to ${login.server}${login.user ? html` <small>for user ${login.user} of key ${login.key}</small>` : nothing}</h3>
  <p>The page of <b class="host">${new URL(login.address).host}</b> asks who you are, and whether Callgate may act for you${login.scopes.length ? html`: ${login.scopes.join(", ")}` : nothing}.
    Whoever you are there, that is who the tools of ${login.server} are used as.</p>
  <p><a href=${login.address} target="_blank" rel="noopener noreferrer">Go on to ${new URL(login.address).host}</a></p>
  <details open><summary>The whole address</summary><p class="asked">${login.address}</p></details>
  <menu>${copyButton(login.address, "Copy the address")}<small>It works in this browser, once, for ten minutes.</small></menu>
</article>`;

/** @param {any} login @param {() => void} reload */
async function begin(login, reload) {
  try {
    const made = await ask("v1/logins", login.user ? { server: login.server, user: login.user } : { server: login.server });
    begun.set(place(login), { login: made, wasIn: login.state === "ok", until: Date.now() + made.expires_in * 1000 });
  } catch (failure) {
    fail(failure);
  }
  reload();
}

/** @param {any} login @param {() => void} reload */
async function logout(login, reload) {
  if (!confirm(`Log out of ${login.server}? Its tools cannot be used until somebody logs in again.`)) return;
  try {
    await send(`v1/logins/${encodeURIComponent(login.server)}${login.user ? `?user=${encodeURIComponent(login.user)}` : ""}`, { method: "DELETE" });
  } catch (failure) {
    fail(failure);
  }
  begun.delete(place(login));
  reload();
}

/** Ask for the address of a login; the browser gets a cookie with it, by which it is known again. @param {string} path @param {unknown} json */
export const ask = async (path, json) => (await send(path, { method: "POST", json, credentials: "same-origin" })).json();
