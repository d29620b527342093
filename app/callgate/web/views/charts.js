// @ts-check
// Bars and lines over time. Each part of a bar is a link; the arrow keys go from one to the next, and the same numbers are a table.

import { html, nothing } from "../lit.js";
import { table } from "./shared.js";

/**
 * @typedef {object} Series
 * @property {string} name
 * @property {string} tone the class with its colour
 * @property {(number | null)[]} values one for each bar
 * @property {(place: number) => string} href where a bar leads
 */

/**
 * @typedef {object} Chart
 * @property {string} title
 * @property {Series[]} series from the bottom up
 * @property {string[]} moments a word for each bar
 * @property {string[]} ticks below the axis, evenly spread
 * @property {(value: number | null) => string} show
 * @property {string} [note]
 */

/** The next round number, so that an axis can be read. @param {number} most */
export function roundUp(most) {
  if (most <= 0) return 2;
  const power = 10 ** Math.floor(Math.log10(most));
  return Math.max(([1, 2, 4, 6, 8, 10].find((step) => step * power >= most) ?? 10) * power, Number.isInteger(most) ? 2 : 0);
}

const words = (/** @type {Chart} */ chart, /** @type {number} */ place) =>
  `${chart.moments[place]}: ${chart.series.map((line) => `${chart.show(line.values[place])} ${line.name}`).join(", ")}`;

/** @param {Chart} chart @param {unknown} plot @param {number} top */
const figure = (chart, plot, top) => html`<figure class="chart" role="group" aria-label=${chart.title} @mouseover=${tell} @focusin=${tell} @mouseleave=${untell} @keydown=${step}>
  <figcaption><b>${chart.title}</b> <span class="keys">${chart.series.map((line) => html`<span><i class="key ${line.tone}"></i>${line.name}</span>`)}</span></figcaption>
  <div class="plot"><div class="scale" aria-hidden="true"><span>${chart.show(top).replace(/\.0+ /, " ")}</span><span>${chart.show(top / 2).replace(/\.0+ /, " ")}</span><span>0</span></div>${plot}</div>
  <div class="ticks" aria-hidden="true">${chart.ticks.map((tick) => html`<span>${tick}</span>`)}</div>
  <p class="told" aria-live="polite" data-usual=${chart.note ?? ""}>${chart.note ?? ""}</p>
  <details><summary>As a table</summary>${table(
    chart.title,
    ["Time", ...chart.series.map((line) => `#${line.name}`)],
    chart.moments.map((moment, place) => html`<tr><td>${moment}</td>${chart.series.map((line) => html`<td class="number">${line.values[place] ? html`<a href=${line.href(place)}>${chart.show(line.values[place])}</a>` : chart.show(line.values[place])}</td>`)}</tr>`),
  )}</details>
</figure>`;

/** Bars whose parts stand on one another. @param {Chart} chart */
export function bars(chart) {
  const sums = chart.moments.map((_, place) => chart.series.reduce((sum, line) => sum + (line.values[place] ?? 0), 0));
  const top = roundUp(Math.max(...sums));
  let isFirst = true;
  const part = (/** @type {Series} */ line, /** @type {number} */ place) => {
    const value = line.values[place];
    if (!value) return nothing;
    const stop = isFirst ? "0" : "-1";
    isFirst = false;
    return html`<a class=${line.tone} tabindex=${stop} href=${line.href(place)} data-high=${value / top} aria-label="${line.name}, ${chart.moments[place]}: ${chart.show(value)}"></a>`;
  };
  const columns = chart.moments.map((_, place) => html`<li data-words=${words(chart, place)}>${chart.series.map((line) => part(line, place))}</li>`);
  return figure(chart, html`<ol class="bars">${columns}</ol>`, top);
}

/** Lines, with a link for each moment. @param {Chart} chart at most four series */
export function lines(chart) {
  const top = roundUp(Math.max(0, ...chart.series.flatMap((line) => line.values.map((value) => value ?? 0))));
  const count = chart.moments.length;
  const path = (/** @type {Series | undefined} */ line) => {
    let isDown = false;
    return (line?.values ?? [])
      .map((value, place) => {
        if (value === null) return (isDown = false), "";
        const [x, y] = [place + 0.5, (100 * (1 - value / top)).toFixed(2)];
        const isAlone = !isDown && (line?.values[place + 1] ?? null) === null;
        const mark = isDown ? `L${x} ${y}` : `M${isAlone ? x - 0.35 : x} ${y}${isAlone ? "h.7" : ""}`;
        isDown = true;
        return mark;
      })
      .join("");
  };
  const [one, two, three, four] = chart.series;
  let isFirst = true;
  const columns = chart.moments.map((_, place) => {
    const line = chart.series.find((each) => each.values[place] !== null);
    if (!line) return html`<li data-words=${words(chart, place)}></li>`;
    const stop = isFirst ? "0" : "-1";
    isFirst = false;
    return html`<li data-words=${words(chart, place)}><a tabindex=${stop} href=${line.href(place)} aria-label=${words(chart, place)} data-high="1"></a></li>`;
  });
  const shape = html`<svg viewBox="0 0 ${count} 100" preserveAspectRatio="none" aria-hidden="true">
    <path class=${one?.tone ?? ""} d=${path(one)}></path><path class=${two?.tone ?? ""} d=${path(two)}></path><path class=${three?.tone ?? ""} d=${path(three)}></path><path class=${four?.tone ?? ""} d=${path(four)}></path>
  </svg>`;
  return figure(chart, html`<div class="lines">${shape}<ol class="bars">${columns}</ol></div>`, top);
}

/**
 * Small bars without an axis; what is bad of them in its own colour.
 * @param {string} label @param {string} href @param {number[]} all @param {number[]} [bad]
 */
export function spark(label, href, all, bad = []) {
  const sums = all.map((value, place) => Math.max(value, bad[place] ?? 0));
  const most = Math.max(...sums, 1);
  const path = (/** @type {number[]} */ values) => values.map((value, place) => (value ? `M${place} 20v-${Math.max((value / most) * 20, 1).toFixed(2)}h.8V20z` : "")).join("");
  return html`<a class="spark" href=${href} aria-label=${label} title=${label}><svg viewBox="0 0 ${all.length} 20" preserveAspectRatio="none" aria-hidden="true"><path class="of-ok" d=${path(sums)}></path><path class="of-bad" d=${path(bad)}></path></svg></a>`;
}

/** What a style attribute may not say here is set when it is drawn. @param {ParentNode} root */
export function size(root) {
  for (const part of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("[data-high]"))) part.style.setProperty("--high", part.dataset.high ?? "0");
}

/** Says below a chart what is under the mouse, or has the focus. @param {Event} event */
function tell(event) {
  const column = /** @type {HTMLElement} */ (event.target).closest("li");
  const told = /** @type {HTMLElement} */ (event.currentTarget).querySelector(".told");
  if (told && column) told.textContent = /** @type {HTMLElement} */ (column).dataset.words ?? "";
}

/** @param {Event} event */
function untell(event) {
  const told = /** @type {HTMLElement | null} */ (/** @type {HTMLElement} */ (event.currentTarget).querySelector(".told"));
  if (told) told.textContent = told.dataset.usual ?? "";
}

/** @param {KeyboardEvent} event */
function step(event) {
  if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
  const links = [.../** @type {HTMLElement} */ (event.currentTarget).querySelectorAll(".bars a")];
  const at = links.indexOf(/** @type {Element} */ (event.target));
  if (at < 0) return;
  event.preventDefault();
  const ahead = event.key === "ArrowRight" || event.key === "ArrowUp" ? 1 : -1;
  const place = event.key === "Home" ? 0 : event.key === "End" ? links.length - 1 : at + ahead;
  const next = /** @type {HTMLElement | undefined} */ (links[place]);
  if (!next) return;
  /** @type {HTMLElement} */ (event.target).tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
