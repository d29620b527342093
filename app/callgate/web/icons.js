// @ts-check
// Icons, drawn: a font may lack a sign, or show it as a coloured picture. A word stands beside each, or names it.

import { html } from "./lit.js";

/** Lines on 16 by 16 places. */
const SHAPES = {
  check: "M3 8.5l3.2 3.2L13 4.8",
  cross: "M4 4l8 8M12 4l-8 8",
  back: "M6.5 4L3 7.5 6.5 11M3 7.5h6.5a3 3 0 0 1 0 6H8",
  pause: "M6 4v8M10 4v8",
  dots: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  pen: "M3 13l.8-3.2L10.6 3l2.4 2.4-6.8 6.8L3 13",
  play: "M5 3.5l7 4.5-7 4.5z",
  stop: "M4.5 4.5h7v7h-7z",
  bar: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11M4.2 11.8l7.6-7.6",
  leave: "M2.5 8H10M7 5l3 3-3 3M13 3.5v9",
  scissors: "M4 5.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM4 13.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM5.2 5L13 12M5.2 11L13 4",
  live: "M8 5.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5z",
  ring: "M8 4a4 4 0 1 0 0 8 4 4 0 0 0 0-8z",
  next: "M6 3.5L10.5 8 6 12.5",
  previous: "M10 3.5L5.5 8 10 12.5",
  unequal: "M3.5 6h9M3.5 10h9M10.5 3l-5 10",
  clock: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11M8 5v3.2l2.2 1.4",
  image: "M2.5 3.5h11v9h-11zM3 11l3-3 2.5 2.5L10.5 8.5 13 11M5.5 6h.01",
};
/** Those that are filled. */
const FILLED = new Set(["play", "stop", "live"]);

/** @typedef {keyof typeof SHAPES} Icon */

/** @param {Icon} name @param {string} [label] for whoever does not see it, where no word beside it says the same */
export const icon = (name, label) =>
  label
    ? html`<svg class="icon ${FILLED.has(name) ? "filled" : ""}" viewBox="0 0 16 16" role="img" aria-label=${label}><path d=${SHAPES[name]}></path></svg>`
    : html`<svg class="icon ${FILLED.has(name) ? "filled" : ""}" viewBox="0 0 16 16" aria-hidden="true"><path d=${SHAPES[name]}></path></svg>`;
