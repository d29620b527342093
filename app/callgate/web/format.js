// @ts-check
// How numbers, moments and states are shown.

/** @param {number | null | undefined} seconds */
export function seconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
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

/** @param {number} bytes */
export function bytes(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 ** 2) return `${(bytes / 1024).toFixed(1)} KB`;
  return `${(bytes / 1024 ** 2).toFixed(1)} MB`;
}

const STATES = {
  under_way: ["…", "under way"],
  answered: ["✓", "answered"],
  handed_back: ["↩", "handed back"],
  turn_limit: ["■", "turn limit"],
  gave_up: ["■", "gave up"],
  refused: ["⊘", "refused"],
  failed: ["✗", "failed"],
  client_left: ["⇥", "client left"],
  cut_off: ["✂", "cut off"],
  stopped: ["■", "stopped"],
};

/** @param {string} state @returns {[string, string]} a mark and a word, so that no state is told by colour alone */
export const state = (state) => /** @type {[string, string]} */ (STATES[/** @type {keyof typeof STATES} */ (state)] ?? ["?", state]);

const WHY_NOT_KEPT = {
  nothing: "not kept (record.content: off, or the request asked for that)",
  cut: "not kept, or never came; other texts were cut at record.content_bytes",
  aged_out: "aged out: removed to make room (record.keep)",
  content: "never came",
};

/** Why a text is not there. @param {string} kept */
export const whyNotKept = (kept) => WHY_NOT_KEPT[/** @type {keyof typeof WHY_NOT_KEPT} */ (kept)] ?? kept;

/** @param {string} text JSON if it is, indented */
export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
