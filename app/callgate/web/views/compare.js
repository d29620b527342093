// @ts-check
// Two runs beside one another: their turns in order, and what differs.

import { html, nothing, render } from "../lit.js";
import { get } from "../api.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { differences } from "./differences.js";
import { fateOf, messagesOf, textOf, toldOf, turnsOf, wordOf, wordsOf } from "./run_facts.js";
import { fail } from "./shared.js";

export const title = "Compare";

/** @type {HTMLElement} */ let root;
/** @type {any[]} */ let runs = [];
let message = "";

/** @param {HTMLElement} main @param {string[]} path */
export function show(main, path) {
  root = main;
  runs = [];
  message = "Loading …";
  let isLeft = false;
  Promise.all(path.slice(0, 2).map((id) => get(`v1/runs/${encodeURIComponent(id)}?content=1`))).then(
    (found) => {
      if (isLeft) return;
      runs = found;
      message = found.length < 2 ? "Two runs are compared: #/compare/ONE/OTHER." : "";
      draw();
    },
    (failure) => {
      if (isLeft) return;
      message = failure.message;
      if (failure.status === 401) fail(failure);
      draw();
    },
  );
  draw();
  return () => {
    isLeft = true;
  };
}

/** @type {[string, (run: any) => string][]} */
const FACTS = [
  ["ending", (run) => format.ending(run)[1]],
  ["model", (run) => `${run.model}${run.deployment ? ` → ${run.deployment}` : ""}`],
  ["finish_reason", (run) => run.finish_reason],
  ["turns", (run) => String(run.turns)],
  ["calls", (run) => `${run.calls}${run.broken_calls ? `, ${run.broken_calls} broken` : ""}`],
  ["took", (run) => format.seconds(run.seconds)],
  ["tokens", (run) => `${format.count(run.tokens_in)} + ${format.count(run.tokens_out)}`],
  ["cost", (run) => format.money(run.cost)],
];

function draw() {
  const [one, other] = runs;
  if (message || !one || !other) {
    render(html`<p class="empty" role="status">${message}</p>`, root);
    return;
  }
  const sides = runs.map((run) => turnsOf(run).filter((turn) => !turn.choice));
  const places = [...Array(Math.max(sides[0].length, sides[1].length)).keys()];
  render(
    html`<div class="scroll" tabindex="0" role="group" aria-label="Both runs"><table class="compare" aria-label="Compare">
      <thead><tr><th></th>${runs.map((run) => html`<th><a href="#/run/${encodeURIComponent(run.id)}">${run.id}</a></th>`)}</tr></thead>
      <tbody>
        ${FACTS.map(([name, of]) => pair(name, [of(one), of(other)], inLine))}
        ${pair("asked", runs.map(questionOf), inMono)}
        ${places.flatMap((place) => {
          const both = sides.map((turns) => turns[place]);
          const calls = both.map((turn) => (turn ? [...turn.calls.values()] : []));
          const words = both.map((turn, index) => turn && (textOf(runs[index], turn, `turn.${turn.index}.text`) ?? ""));
          return [
            pair(`turn ${place + 1}`, words, inMono),
            ...[...Array(Math.max(calls[0].length, calls[1].length)).keys()].flatMap((at) => [
              pair(`· call ${at + 1}`, calls.map((list, index) => shownCall(runs[index], both[index], list[at])), inMono),
              pair(`· result ${at + 1}`, calls.map((list, index) => resultOf(runs[index], both[index], list[at])), inMono),
            ]),
          ];
        })}
      </tbody>
    </table></div>
    <p><small>Rows that differ are marked with ${icon("unequal", "an unequal sign")}.${runs.some((run) => !["content", "memory"].includes(run.kept)) ? " Texts of a run that are not kept are not compared." : ""}</small></p>`,
    root,
  );
}

/** A call as it is compared. @param {any} run @param {any} turn @param {any} call */
function shownCall(run, turn, call) {
  if (!call) return undefined;
  const written = textOf(run, turn, `call.${call.id}.arguments`);
  const fate = wordOf(call) || (fateOf(call) === "check" ? "ran" : "");
  return `${call.name ?? "(no name)"} ${fate}\n${written === undefined ? "" : format.pretty(written)}`;
}

/** What the model was sent for a call. @param {any} run @param {any} turn @param {any} call */
function resultOf(run, turn, call) {
  if (!call || call.owner === "client") return undefined;
  const result = toldOf(run, turn, call);
  return result === undefined ? undefined : format.pretty(result);
}

/** What a person asked last. @param {any} run */
function questionOf(run) {
  const asked = messagesOf(run).findLast((message) => message.role === "user");
  return asked ? wordsOf(asked) : run.question || undefined;
}

/** A text with what the other does not have marked. @param {import("./differences.js").Piece[] | undefined} pieces */
const inMono = (pieces) => (pieces === undefined ? "–" : pieces.some((piece) => piece.text) ? html`<pre tabindex="0">${pieces.map((piece) => (piece.differs ? html`<mark>${piece.text}</mark>` : piece.text))}</pre>` : nothing);

/** @param {import("./differences.js").Piece[] | undefined} pieces */
const inLine = (pieces) => (pieces ?? []).map((piece) => (piece.differs ? html`<mark>${piece.text}</mark>` : piece.text));

/** @param {string} name @param {(string | undefined)[]} both @param {(pieces: import("./differences.js").Piece[] | undefined) => unknown} shown */
function pair(name, both, shown) {
  if (both.every((each) => each === undefined)) return nothing;
  const differs = both[0] !== both[1];
  const pieces = both.map((each) => (each === undefined ? undefined : [{ text: each, differs: both.includes(undefined) }]));
  const marked = differs && both[0] !== undefined && both[1] !== undefined ? differences(both[0], both[1]) : pieces;
  return html`<tr class=${differs ? "differs" : ""}><th scope="row">${differs ? html`${icon("unequal", "differs")} ` : nothing}${name}</th>
    ${marked.map((each) => html`<td>${shown(each)}</td>`)}</tr>`;
}
