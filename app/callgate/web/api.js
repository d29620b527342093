// @ts-check
// Talking to the server the page came from. The key is in memory, or in this tab's session storage if asked; it travels in
// the Authorization header and nowhere else.

import { exact } from "./format.js";

const STORED = "callgate-key";

/** @type {string} */
let key = sessionStorage.getItem(STORED) ?? "";
const fragment = new URLSearchParams(location.hash.startsWith("#/") ? "" : location.hash.slice(1)); // a page of ours may be filtered by key
/** A key that a link brought. It is not used unasked: whoever made the link would see what is done with it. */
export const linkedKey = fragment.get("key") ?? "";
if (fragment.has("key")) {
  history.replaceState(null, "", location.pathname + location.search + "#/overview");
}

/** Who is asking, and what that may; as `GET v1/key` says it. @type {any} */
export let me = null;
export async function askWho() {
  me = await get("v1/key");
}

export const hasKey = () => key !== "";
export const currentKey = () => ({ key, isKept: sessionStorage.getItem(STORED) !== null });

/** @param {string} value @param {boolean} keep whether to keep it until the tab is closed @param {boolean} [isRenewed] of the same person */
export function setKey(value, keep, isRenewed = false) {
  key = value.trim();
  if (!isRenewed) me = null;
  if (keep && key) sessionStorage.setItem(STORED, key);
  else sessionStorage.removeItem(STORED);
}

export class ApiError extends Error {
  /** @param {number} status @param {{message?: string, code?: string, param?: string}} error @param {string} [run] */
  constructor(status, error, run) {
    super(error.message ?? `The server answered ${status}.`);
    this.status = status;
    this.code = error.code ?? "";
    this.run = run ?? "";
  }
}

/** @param {string} path @param {RequestInit & {json?: unknown}} [options] @returns {Promise<Response>} */
export async function send(path, options = {}) {
  const headers = new Headers(options.headers);
  if (key) headers.set("authorization", `Bearer ${key}`);
  let body = options.body;
  if (options.json !== undefined) {
    headers.set("content-type", "application/json");
    body = JSON.stringify(options.json);
  }
  let response;
  try {
    response = await fetch(path, { ...options, headers, body, cache: "no-store", credentials: options.credentials ?? "omit" });
  } catch (failure) {
    if (options.signal?.aborted) throw failure;
    throw new ApiError(0, { message: "The server cannot be reached." });
  }
  if (response.ok) return response;
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // no JSON: the status says all there is
  }
  throw new ApiError(response.status, error, response.headers.get("x-callgate-run") ?? "");
}

/** @param {string} path @param {RequestInit & {json?: unknown}} [options] */
export async function get(path, options) {
  const response = await send(path, options);
  return response.status === 204 ? null : response.json();
}

/** The same with every number as it was written. @param {string} path */
export const getExact = async (path) => exact(await (await send(path)).text());

/**
 * Events of a text/event-stream body, as they come.
 * @param {Response} response
 * @returns {AsyncGenerator<{event: string, data: string}>}
 */
export async function* events(response) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const blocks = rest.split(/\r?\n\r?\n/);
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        let event = "message";
        const data = [];
        for (const line of block.split(/\r?\n/)) {
          if (line.startsWith("event:")) event = line.slice(6).trim();
          else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        }
        if (data.length) yield { event, data: data.join("\n") };
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * The server's feed, for as long as the tab is seen; it is opened again after it broke off.
 * @param {(event: string, data: any) => void} onEvent
 * @param {(state: "live" | "restarting" | "crowded" | "hidden" | "refused") => void} onState
 */
export function feed(onEvent, onState) {
  /** @type {AbortController | null} */
  let open = null;
  let ended = false;
  let wait = 500;
  let isCrowded = false;

  async function follow() {
    if (ended || open || document.hidden) return;
    const controller = (open = new AbortController());
    try {
      const response = await send("v1/feed", { signal: controller.signal });
      onState("live");
      wait = 500;
      isCrowded = false;
      for await (const { event, data } of events(response)) onEvent(event, JSON.parse(data));
    } catch (failure) {
      if (failure instanceof ApiError && [401, 403, 404].includes(failure.status)) {
        onState("refused");
        ended = true;
      }
      isCrowded = failure instanceof ApiError && failure.status === 503;
    }
    open = null;
    if (ended || document.hidden) return;
    onState(isCrowded ? "crowded" : "restarting");
    setTimeout(follow, wait + Math.random() * 250);
    wait = Math.min(wait * 2, 10_000);
  }
  function seen() {
    if (document.hidden) {
      open?.abort();
      onState("hidden");
    } else follow();
  }
  document.addEventListener("visibilitychange", seen);
  follow();
  return () => {
    ended = true;
    open?.abort();
    document.removeEventListener("visibilitychange", seen);
  };
}
