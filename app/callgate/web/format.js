// @ts-check
// How numbers, moments and states are shown.

import { icon } from "./icons.js";

/** @param {number | null | undefined} seconds */
export function seconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds > 0 && seconds < 0.0005) return "< 1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${seconds.toFixed(2)} s`;
  return `${Math.round(seconds)} s`;
}

/** @param {number} moment seconds since 1970 */
export const time = (moment) => new Date(moment * 1000).toLocaleTimeString([], { hour12: false });

/** @param {number} moment seconds since 1970 */
export function moment(moment) {
  const date = new Date(moment * 1000);
  const today = new Date().toDateString() === date.toDateString();
  return today ? time(moment) : `${date.toLocaleDateString()} ${time(moment)}`;
}

/** @param {number | null | undefined} count */
export const count = (count) => (count === null || count === undefined ? "–" : count.toLocaleString("en"));

/** @param {number | null | undefined} dollars */
export function money(dollars) {
  if (dollars === null || dollars === undefined) return "no price";
  if (dollars === 0) return "$0";
  return dollars < 0.01 ? `$${dollars.toFixed(5)}` : `$${dollars.toFixed(2)}`;
}

/** @param {number} known @param {number} unpriced */
export const cost = (known, unpriced) => `${money(known)}${unpriced ? ` + ${many(unpriced, "request")} without a price` : ""}`;

/** What was read from a provider's cache and written to it, behind the tokens that went in; nothing where it was nothing.
 * @param {number | null | undefined} read @param {number | null | undefined} written */
export function cache(read, written) {
  const said = [read && `${count(read)} from the cache`, written && `${count(written)} written to it`].filter(Boolean);
  return said.length ? ` (${said.join(", ")})` : "";
}

/** The tokens of a turn, as its provider reported them. @param {any} usage */
export function tokens(usage) {
  const details = usage.prompt_tokens_details ?? {};
  const read = details.cached_tokens ?? usage.cache_read_input_tokens;
  const written = usage.cache_creation_input_tokens ?? details.cache_creation_tokens ?? details.cache_write_tokens;
  return `${count(usage.prompt_tokens)}${cache(read, written)} + ${count(usage.completion_tokens)} tokens in + out`;
}

/** @param {number} count @param {string} word */
export const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** @param {number} bytes */
export function bytes(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 ** 2) return `${(bytes / 1024).toFixed(1)} KB`;
  return `${(bytes / 1024 ** 2).toFixed(1)} MB`;
}

/** @type {Record<string, [import("./icons.js").Icon, string]>} */
const STATES = {
  under_way: ["dots", "under way"],
  answered: ["check", "answered"],
  handed_back: ["back", "handed back"],
  turn_limit: ["stop", "turn limit"],
  gave_up: ["stop", "gave up"],
  refused: ["bar", "refused"],
  failed: ["cross", "failed"],
  client_left: ["leave", "client left"],
  cut_off: ["scissors", "cut off"],
  stopped: ["stop", "stopped"],
};

/** @param {string} state @returns {[unknown, string]} an icon and a word, so that no state is told by colour alone */
export function state(state) {
  const [name, word] = Object.hasOwn(STATES, state) ? STATES[state] : /** @type {[import("./icons.js").Icon, string]} */ (["ring", state]);
  return [icon(name), word];
}

const WHY_NOT_KEPT = {
  nothing: "not kept (the config has no `record: {content: on}`, or the request asked for that)",
  memory: "never came; the other texts are in memory",
  cut: "not kept, or never came; other texts were cut at record.content_bytes",
  aged_out: "aged out: removed to make room (record.keep)",
  content: "never came",
};

/** Why a text is not there. @param {string} kept */
export const whyNotKept = (kept) => WHY_NOT_KEPT[/** @type {keyof typeof WHY_NOT_KEPT} */ (kept)] ?? kept;

/** JSON with every number as it was written: 9007199254740993 would be another one here. @param {string} text */
export const exact = (text) =>
  JSON.parse(text, (_, value, context) => {
    const isOther = typeof value === "number" && context?.source !== undefined && String(value) !== context.source;
    return isOther && "rawJSON" in JSON ? /** @type {any} */ (JSON).rawJSON(context.source) : value;
  });

// As calls/unseen.py.
const UNSEEN = /(?![\n ])[\p{C}\p{Z}\u034f\u115f-\u1160\u17b4-\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\u{e0100}-\u{e01ef}]/gu;

/** JSON, with what is not seen escaped. @param {unknown} value */
export const shown = (value) =>
  JSON.stringify(value, null, 2).replace(UNSEEN, (each) =>
    [...Array(each.length).keys()].map((at) => `\\u${each.charCodeAt(at).toString(16).padStart(4, "0")}`).join(""),
  );

/** @param {string} text JSON if it is, indented */
export function pretty(text) {
  try {
    return shown(exact(text));
  } catch {
    return text;
  }
}

/** Whether the texts of a run are there, in words. @param {string} kept */
export const keptWords = (kept) => ({ content: "kept", memory: "kept in memory, and shown to this key alone" })[kept] ?? whyNotKept(kept);
