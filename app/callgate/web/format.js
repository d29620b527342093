// @ts-check
// How numbers, moments and states are shown.

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

/** A count in a few signs: 1,234,567 is 1.2M. @param {number} count */
export const short = (count) => (count < 10_000 ? count.toLocaleString("en") : count.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 }));

/** @param {number} part @param {number} all */
export function share(part, all) {
  if (!all) return "";
  const percent = (100 * part) / all;
  if (!percent) return "0 %";
  return `${percent > 0 && percent < 0.1 ? "< 0.1" : percent > 99.9 && percent < 100 ? "> 99.9" : percent.toFixed(percent < 10 || (percent > 90 && percent < 100) ? 1 : 0)} %`;
}

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
export const many = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

/** @param {number} bytes */
export function bytes(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 ** 2) return `${(bytes / 1024).toFixed(1)} KB`;
  return `${(bytes / 1024 ** 2).toFixed(1)} MB`;
}

/** @typedef {"good" | "bad" | "wait" | "dim"} Tone */
/** @typedef {[import("./icons.js").Icon, string, Tone]} Ending an icon and a word, so that no ending is told by colour alone */

/** @type {Record<string, Ending>} */
const ENDINGS = {
  under_way: ["dots", "under way", "wait"],
  answered: ["check", "answered", "good"],
  handed_back: ["back", "handed back", "good"],
  turn_limit: ["stop", "turn limit", "wait"],
  gave_up: ["stop", "gave up", "bad"],
  refused: ["bar", "refused", "bad"],
  failed: ["cross", "failed", "bad"],
  client_left: ["leave", "client left", "dim"],
  cut_off: ["scissors", "cut off", "bad"],
  stopped: ["stop", "stopped", "wait"],
};
/** @type {Record<string, Ending>} */
const NOTES = {
  failed_turns: ["stop", "calls kept failing", "bad"],
  repeated_call: ["stop", "same call again", "wait"],
  tokens: ["stop", "token limit", "wait"],
  content_filter: ["bar", "filtered", "bad"],
  cut_off_twice: ["scissors", "cut off twice", "bad"],
  end_not_seen: ["scissors", "end not seen", "bad"],
  unknown_finish_reason: ["stop", "unknown end", "bad"],
};

/** How a run ended: one with an end or a call that somebody should look at is not shown as simply answered. @param {any} run @returns {Ending} */
export function ending(run) {
  const known = NOTES[run.note ?? ""] ?? (Object.hasOwn(ENDINGS, run.state) ? ENDINGS[run.state] : undefined);
  if (run.state !== "answered") return known ?? ["ring", run.state, "dim"];
  const outcomes = Object.values(run.outcomes ?? {}).flatMap((each) => Object.keys(each));
  if (run.finish_reason === "length") return ["scissors", "cut at length", "wait"];
  if (run.finish_reason === "content_filter") return ["bar", "filtered", "bad"];
  if (outcomes.includes("denied")) return ["bar", "call denied", "wait"];
  if (outcomes.includes("expired")) return ["clock", "not approved", "wait"];
  if (run.broken_calls) return ["unequal", "broken call", "wait"];
  if (run.failed_calls) return ["cross", "failed call", "wait"];
  return ENDINGS.answered;
}

/** What became of the calls of a tool, the worst first. @param {string[]} outcomes @returns {[Tone, import("./icons.js").Icon]} */
export function fate(outcomes) {
  const worst = outcomes.find((each) => !["returned", "handed_back", "not_run", "denied", "expired"].includes(each));
  if (worst) return ["raised", "timeout", "refused", "unavailable", "unknown"].includes(worst) ? ["bad", "cross"] : ["bad", "unequal"];
  if (outcomes.includes("denied")) return ["wait", "bar"];
  if (outcomes.includes("expired")) return ["wait", "clock"];
  if (outcomes.includes("not_run")) return ["dim", "pause"];
  if (outcomes.includes("returned")) return ["good", "check"];
  return outcomes.length ? ["dim", "back"] : ["dim", "dots"];
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
