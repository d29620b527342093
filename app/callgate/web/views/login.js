// @ts-check
// The page of a user who has no key: he was given its address to log in to one server, and sees nothing else.

import { html, render } from "../lit.js";
import { ask, card } from "./logins.js";

const START = "#/login/";

export const isHere = () => location.hash.startsWith(START);

/** @param {HTMLElement} root */
export function show(root) {
  const ticket = decodeURIComponent(location.hash.slice(START.length));
  document.title = "Log in · Callgate";
  const draw = (/** @type {unknown} */ content) => render(html`<section aria-label="Log in" class="detail">${content}</section>`, root);
  const begin = async () => {
    try {
      const login = await ask("oauth/login", { ticket });
      draw(html`${card(login)}<p>Go on only if it was you who asked for it, in a chat of your own. Afterwards go back there and ask again.</p>`);
    } catch (failure) {
      draw(html`<h2>This cannot be logged in to</h2><p role="alert" class="odd">${/** @type {Error} */ (failure).message}</p>`);
    }
  };
  draw(html`<h2>Log in to use a tool</h2>
    <p>A chat of yours wants to use a tool that knows its users. This address was made for you alone: whoever logs in by it is taken for you. It can be used once.</p>
    <menu><button @click=${begin}>Show me where to log in</button></menu>`);
}
