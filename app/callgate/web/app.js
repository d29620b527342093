// @ts-check
// The shell: which page is shown, who is asking, and what is waiting for a person.

import { html, nothing, render } from "./lit.js";
import { ApiError, askWho, currentKey, feed, get, hasKey, linkedKey, me, setKey } from "./api.js";
import { icon } from "./icons.js";
import * as signIn from "./sign_in.js";
import * as texts from "./texts.js";
import * as approvals from "./views/approvals.js";
import * as compare from "./views/compare.js";
import * as keys from "./views/keys.js";
import * as login from "./views/login.js";
import * as models from "./views/models.js";
import * as overview from "./views/overview.js";
import * as playground from "./views/playground.js";
import * as run from "./views/run.js";
import * as runs from "./views/runs.js";
import * as tools from "./views/tools.js";
import * as usage from "./views/usage.js";

/**
 * @typedef {object} View
 * @property {string} title
 * @property {(root: HTMLElement, path: string[], query: URLSearchParams) => (() => void) | void} show
 * @property {(event: string, data: any) => void} [onFeed]
 */

/** @type {Record<string, View>} */
const VIEWS = { overview, playground, runs, run, compare, approvals, tools, models, usage, keys };
const TABS = ["overview", "playground", "runs", "approvals", "tools", "models", "usage", "keys"];

const bar = /** @type {HTMLElement} */ (document.getElementById("bar"));
const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const notices = /** @type {HTMLElement} */ (document.getElementById("notices"));

/** A notice that is younger was written on the way to the next page, and is about that. */
const NOTICE_MS = 1000;

let current = "overview";
let waiting = 0;
let isStarted = false;
/** @type {"live" | "restarting" | "crowded" | "hidden" | "refused" | "starting"} */
let state = "starting";
/** @type {(() => void) | void} */
let leave;
let closeFeed = () => {};

const STATE_WORDS = {
  live: "live",
  restarting: "restarting",
  crowded: "not live: too many are watching",
  hidden: "paused",
  refused: "not live",
  starting: "connecting",
};

/** What the key may, in words. */
function rights() {
  if (!me) return "";
  const sees = { all: "sees all runs", own: "sees its own runs", none: "sees no runs" }[/** @type {"all" | "own" | "none"} */ (me.see)];
  const lists = [me.models, me.tools].map((names, place) => `${place ? "tools" : "models"}: ${names.includes("*") ? "all" : names.join(", ") || "none"}`);
  return [me.anonymous ? "no key" : me.signed_in ? `${me.signed_in.name} (${me.name}), of the group ${me.signed_in.group}` : `key ${me.name}`, sees, me.approve ? "decides about calls" : "", me.admin ? "operates the server" : "", ...lists].filter(Boolean).join(" · ");
}

/** Who is asking, for the button. */
function who() {
  if (me?.signed_in) return me.signed_in.name;
  return `Key: ${me ? (me.anonymous ? "none" : me.name) : hasKey() ? "…" : "none"}`;
}

function drawBar() {
  render(
    html`<h1><a href="#/overview">Callgate</a></h1>
      <nav aria-label="Pages">
        ${TABS.map(
          (tab) =>
            html`<a href="#/${tab}" aria-current=${tab === current || (tab === "runs" && ["run", "compare"].includes(current)) ? "page" : nothing}
              >${VIEWS[tab].title}${tab === "approvals" && waiting ? html` <b class="count">${waiting}</b>` : nothing}</a
            >`,
        )}
      </nav>
      ${texts.button()}
      <span class="feed ${state}" title="The feed of runs">${icon(state === "live" ? "live" : "ring")} ${STATE_WORDS[state]}</span>
      <button class="quiet" title=${rights()} @click=${() => askForKey()}>${who()}</button>`,
    bar,
  );
  document.title = `${waiting ? `(${waiting}) ` : ""}${VIEWS[current].title} · Callgate`;
}

/** @param {unknown} [why] @param {string} [known] */
function askForKey(why = "", known = "") {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-label", "API key");
  const save = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const before = currentKey();
    setKey(String(form.get("key") ?? ""), form.get("keep") === "on");
    get("v1/models")
      .then(() => {
        dialog.close();
        start();
      })
      .catch((failure) => {
        setKey(before.key, before.isKept);
        draw(failure.message);
      });
  };
  /** @type {signIn.Place | null} */
  let there = null;
  let shown = "";
  const goThere = (/** @type {Event} */ event) => {
    const form = /** @type {HTMLFormElement} */ (/** @type {HTMLElement} */ (event.target).closest("form"));
    if (there) signIn.leaveFor(there, new FormData(form).get("keep") === "on");
  };
  const draw = (/** @type {string} */ message) => {
    shown = message;
    render(
      html`<form @submit=${save}>
        <h2>${there ? "Sign in" : "API key"}</h2>
        ${me ? html`<p>Now: ${rights()}</p>` : nothing}
        <p role="alert">${message}</p>
        ${there
          ? html`<p><button type="button" @click=${goThere}>Sign in with ${new URL(there.issuer).host}</button>
              ${me?.signed_in ? html`<button type="button" class="quiet" @click=${() => signIn.leave(there)}>Sign out</button>` : nothing}</p>
              <p>or with a key:</p>`
          : nothing}
        <label>Key <input name="key" type="password" autocomplete="off" .value=${known} required ?autofocus=${!there} /></label>
        <label class="check"><input name="keep" type="checkbox" /> keep it until this tab is closed</label>
        <menu><button type="button" class="quiet" @click=${() => dialog.close()}>Cancel</button><button>Use it</button></menu>
      </form>`,
      dialog,
    );
  };
  draw(typeof why === "string" ? why : "");
  signIn.place().then((known) => {
    there = known;
    if (there) draw(shown);
  }, () => {}); // a key will do
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (!isStarted) start();
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** @param {unknown} failure */
export function report(failure) {
  if (failure instanceof ApiError && failure.status === 401) {
    if (!document.querySelector("dialog")) askForKey(hasKey() ? failure.message : "This server asks for a key.");
    return;
  }
  notify(failure instanceof Error ? failure.message : String(failure));
}

/** @param {string} text */
export function notify(text) {
  const line = document.createElement("p");
  line.textContent = text;
  notices.append(line);
  line.dataset.at = String(performance.now());
  setTimeout(() => line.remove(), 8000);
}

/** @param {string} part of an address that somebody may have typed */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  const name = Object.hasOwn(VIEWS, parts[0] ?? "") ? parts[0] : "overview";
  leave?.();
  for (const line of [...notices.children]) if (performance.now() - Number(/** @type {HTMLElement} */ (line).dataset.at) > NOTICE_MS) line.remove(); // they were about the page that is left
  current = name;
  const root = document.createElement("div"); // of its own: an answer that comes after its page was left is drawn nowhere
  main.replaceChildren(root);
  leave = VIEWS[name].show(root, parts.slice(1), new URLSearchParams(query ?? ""));
  drawBar();
}

async function countWaiting() {
  try {
    waiting = (await get("v1/approvals")).data.length;
  } catch {
    waiting = 0; // this key may not decide about calls
  }
  drawBar();
}

/** Who asks is known, or somebody else from now on. */
function whoIsKnown() {
  texts.load(drawBar);
  drawBar();
  VIEWS[current].onFeed?.("who", null);
}

function start() {
  isStarted = true;
  askWho().then(whoIsKnown, () => {}); // whatever else is asked for says why
  closeFeed();
  closeFeed = feed(
    (event, data) => {
      if (event === "approval") countWaiting();
      VIEWS[current].onFeed?.(event, data);
    },
    (now) => {
      const isBack = now === "live" && state !== "starting";
      state = now;
      drawBar();
      if (!isBack) return;
      countWaiting(); // what happened meanwhile was not sent
      VIEWS[current].onFeed?.("back", null);
    },
  );
  countWaiting();
  route();
}

/** @type {HTMLElement} */ (document.querySelector(".skip")).addEventListener("click", (event) => {
  event.preventDefault(); // its address is no page of ours
  main.focus();
});
const isAlone = login.isHere();
window.addEventListener("hashchange", () => (isAlone || login.isHere() ? location.reload() : route()));
window.addEventListener("key", start); // which a view has made and uses
window.addEventListener("report", (event) => report(/** @type {CustomEvent} */ (event).detail));
if (linkedKey) askForKey("This link brings a key: whoever made it may see what is done with it. Use it only if it is yours.", linkedKey);
else if (isAlone) login.show(main);
else if (signIn.isBack()) signIn.arrive().then(start, (failure) => askForKey(failure.message));
else {
  signIn.resume();
  start();
}
