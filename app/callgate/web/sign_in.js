// @ts-check
// Signing in at the company's issuer, as a public client with PKCE: there is no secret, here or on the way. The token is kept as a
// key is: in memory, or in this tab's session storage if asked.

import { setKey } from "./api.js";

/** @typedef {{issuer: string, client_id: string, scopes: string[], authorization: string, token: string, end_session: string | null}} Place */
/** What is remembered over the way there and back. @typedef {{state: string, nonce: string, verifier: string, keep: boolean, page: string}} Way */

const ON_THE_WAY = "callgate-sign-in";
const KEPT = "callgate-renewal";
/** Before its end by which part of its life a token is renewed. */
const EARLY = 0.2;
const SOONEST_MS = 5000;

/** How to get the next token, and what ends the session: with the token in memory, or beside it. @type {{refresh: string, id: string}} */
let renewal = JSON.parse(sessionStorage.getItem(KEPT) ?? '{"refresh": "", "id": ""}');
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

/** Where people sign in here; null where they do not. @returns {Promise<Place | null>} */
export async function place() {
  const response = await fetch("web/sign-in", { cache: "no-store", credentials: "omit" });
  return response.ok ? response.json() : null;
}

/** @param {Place} place @param {boolean} keep whether to keep the token until the tab is closed */
export async function leaveFor(place, keep) {
  const way = { state: random(), nonce: random(), verifier: random(), keep, page: location.hash };
  sessionStorage.setItem(ON_THE_WAY, JSON.stringify(way));
  const challenge = encoded(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(way.verifier))));
  const there = new URL(place.authorization);
  const asked = {
    response_type: "code",
    client_id: place.client_id,
    redirect_uri: here(),
    scope: place.scopes.join(" "),
    state: way.state,
    nonce: way.nonce,
    code_challenge: challenge,
    code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(asked)) there.searchParams.set(name, value);
  location.assign(there);
}

/** Whether the browser comes back from there. */
export function isBack() {
  const said = new URLSearchParams(location.search);
  return said.has("state") && (said.has("code") || said.has("error"));
}

/** Get the token for the code that the browser came back with. Throws an error with what went wrong. */
export async function arrive() {
  const said = new URLSearchParams(location.search);
  const way = /** @type {Way | null} */ (JSON.parse(sessionStorage.getItem(ON_THE_WAY) ?? "null"));
  sessionStorage.removeItem(ON_THE_WAY);
  history.replaceState(null, "", location.pathname + (way?.page || "#/overview"));
  if (!way || said.get("state") !== way.state) throw new Error("Nobody signed in: this page did not ask for it. Sign in again.");
  if (said.has("error")) throw new Error(`Nobody signed in: ${said.get("error_description") || said.get("error")}.`);
  const there = await place();
  if (!there) throw new Error("Nobody signed in: the issuer cannot be reached.");
  if (said.has("iss") && said.get("iss") !== there.issuer) throw new Error("Nobody signed in: another issuer answered.");
  const got = await tokens(there, { grant_type: "authorization_code", code: said.get("code") ?? "", redirect_uri: here(), code_verifier: way.verifier });
  const claims = claimsOf(got.id_token);
  if (claims.nonce !== way.nonce || claims.iss !== there.issuer || ![claims.aud].flat().includes(there.client_id)) {
    throw new Error("Nobody signed in: the answer was meant for another page.");
  }
  take(there, got, way.keep, false);
}

/** Go on renewing the token that this tab has kept. */
export async function resume() {
  if (!renewal.refresh) return;
  const there = await place().catch(() => null);
  if (there) await renew(there, true);
}

/** Forget the token, and end the session there if it can be ended. @param {Place | null} there */
export function leave(there) {
  const { id } = renewal;
  forget();
  if (!there?.end_session) return location.reload();
  const end = new URL(there.end_session);
  end.searchParams.set("client_id", there.client_id);
  end.searchParams.set("post_logout_redirect_uri", here());
  if (id) end.searchParams.set("id_token_hint", id);
  location.assign(end);
}

/** @param {Place} there @param {any} got @param {boolean} keep @param {boolean} isRenewed */
function take(there, got, keep, isRenewed) {
  // The access token, where it is one that can be checked; else the ID token, as at Google.
  const isToken = String(got.access_token ?? "").split(".").length === 3;
  setKey(isToken ? got.access_token : got.id_token, keep, isRenewed);
  renewal = { refresh: got.refresh_token ?? "", id: got.id_token ?? renewal.id };
  if (keep) sessionStorage.setItem(KEPT, JSON.stringify(renewal));
  else sessionStorage.removeItem(KEPT);
  clearTimeout(timer);
  const life = Number(got.expires_in) * 1000;
  if (renewal.refresh && life > 0) timer = setTimeout(() => renew(there, keep), Math.max(life * (1 - EARLY), SOONEST_MS));
}

/** @param {Place} there @param {boolean} keep */
async function renew(there, keep) {
  try {
    const got = await tokens(there, { grant_type: "refresh_token", refresh_token: renewal.refresh });
    take(there, { refresh_token: renewal.refresh, ...got }, keep, true);
  } catch {
    renewal = { ...renewal, refresh: "" }; // the token counts until its end, and then the page asks
    sessionStorage.removeItem(KEPT);
  }
}

function forget() {
  clearTimeout(timer);
  renewal = { refresh: "", id: "" };
  sessionStorage.removeItem(KEPT);
  setKey("", false);
}

/** @param {Place} there @param {Record<string, string>} fields @returns {Promise<any>} */
async function tokens(there, fields) {
  const body = new URLSearchParams({ ...fields, client_id: there.client_id });
  let response;
  try {
    response = await fetch(there.token, { method: "POST", body, cache: "no-store", credentials: "omit" });
  } catch {
    throw new Error("Nobody signed in: the issuer does not answer this page. Its client has to allow this origin.");
  }
  const said = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(`Nobody signed in: ${said.error_description || said.error || `the issuer answered ${response.status}`}.`);
  return said;
}

/** What stands in an ID token. It came from its issuer over TLS, which is what vouches for it. @param {string} token @returns {any} */
function claimsOf(token) {
  try {
    const text = atob(String(token).split(".")[1].replaceAll("-", "+").replaceAll("_", "/"));
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
  } catch {
    return {};
  }
}

const here = () => location.origin + location.pathname;
const random = () => encoded(crypto.getRandomValues(new Uint8Array(32)));

/** @param {Uint8Array} bytes */
const encoded = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
