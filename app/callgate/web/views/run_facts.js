// @ts-check
// What a run's events and texts say of its turns and calls.

import { many } from "../format.js";
import { icon } from "../icons.js";

/**
 * The turns of a run, each with its attempts and calls, out of its events.
 * @param {any} run @returns {any[]}
 */
export function turnsOf(run) {
  /** @type {any[]} */ const found = [];
  /** @type {Map<string, any>} */ const byPlace = new Map();
  const end = run.seconds ?? Date.now() / 1000 - run.began;
  for (const event of run.events ?? []) {
    const { kind, turn: index, choice = 0, facts = {} } = event;
    const place = `${choice}.${index}`;
    let turn = byPlace.get(place);
    if (kind === "turn_started" && !turn) {
      turn = { index, choice, from: event.at, to: end, attempts: [], calls: new Map(), facts: null };
      byPlace.set(place, turn);
      found.push(turn);
    }
    if (!turn) continue;
    if (kind === "attempt") {
      const from = event.at - (facts.seconds ?? 0);
      turn.attempts.push({ ...facts, waitFrom: from - (facts.wait ?? 0), from, to: event.at });
    } else if (kind === "turn_ended") {
      turn.facts = facts;
      turn.answered = turn.to = event.at;
      for (const call of facts.calls ?? []) turn.calls.set(call.id, { ...call, parts: [] });
    } else if (facts.id !== undefined) addToCall(turn, event, end);
  }
  return found;
}

/** @param {any} turn @param {any} event @param {number} end */
function addToCall(turn, { kind, at, facts }, end) {
  const call = turn.calls.get(facts.id) ?? { id: facts.id, name: facts.name, parts: [] };
  turn.calls.set(facts.id, call);
  const last = call.parts.at(-1);
  const next = (/** @type {string} */ what) => {
    if (last) last.to = at;
    call.parts.push({ what, from: at, to: end });
  };
  if (kind === "call_started") next("tool");
  else if (kind === "call_progress" && facts.approval) {
    call.approval = facts.approval;
    next("waiting");
  } else if (kind === "call_progress" && facts.approved) {
    Object.assign(call, { isApproved: true, decision: "approved", by: facts.by, reason: facts.reason });
    next("tool");
  } else if (kind === "call_progress" && facts.input) {
    call.asks = true;
    next("waiting");
  } else if (kind === "call_progress" && call.asks) {
    call.asks = false;
    if (facts.answer) call.answers = [...(call.answers ?? []), facts.answer];
    next("tool");
  } else if (kind === "call_ended") {
    if (last) last.to = at;
    else call.parts.push({ what: "tool", from: at - facts.seconds, to: at });
    turn.to = Math.max(turn.to, at);
    Object.assign(call, { outcome: facts.outcome, seconds: facts.seconds, bytes: facts.bytes, cut_bytes: facts.cut_bytes });
    if (facts.decision) Object.assign(call, { decision: facts.decision, by: facts.by, reason: facts.reason });
  }
}

/** A text of a turn's, where it is kept. @param {any} run @param {any} turn @param {string} part @returns {string | undefined} */
export const textOf = (run, turn, part) => run.content?.[turn.choice ? `choice.${turn.choice}.${part}` : part];

/**
 * What the model was told in answer to a call: in the messages that were added for its next turn.
 * @param {any} run @param {any} turn @param {any} call @returns {string | undefined}
 */
export function toldOf(run, turn, call) {
  const added = textOf(run, turn, `turn.${turn.index + 1}.asked`);
  try {
    for (const message of JSON.parse(added ?? "[]"))
      if (message.tool_call_id === call.id)
        return typeof message.content === "string" ? message.content : JSON.stringify(message.content, null, 2);
  } catch {
    // it was cut, and is no JSON any more
  }
  return textOf(run, turn, `call.${call.id}.result`);
}

/** What became of a call, as the name of its icon. @param {any} call @returns {import("../icons.js").Icon} */
export function fateOf(call) {
  if (call.verdict === "broken") return "cross";
  if (call.owner === "client") return "back";
  if (call.outcome) return call.outcome === "returned" ? "check" : "cross";
  return call.parts.at(-1)?.what === "waiting" ? "pause" : "dots";
}

/** Its icon. @param {any} call */
export const markOf = (call) => icon(fateOf(call));

/** Who decided about a call, and why. @param {any} call */
export function decisionOf(call) {
  if (!call.decision) return "";
  const word = call.decision === "expired" ? "nobody approved it in time" : call.decision;
  return `${word}${call.by && call.by !== "anonymous" ? ` by ${call.by}` : ""}${call.reason ? `: “${call.reason}”` : ""}`;
}

/** In words. @param {any} call */
export function wordOf(call) {
  if (call.verdict === "broken") return `broken: ${call.flaw}`;
  const said = call.owner === "client" ? "the client's own" : call.outcome === "returned" ? "" : (call.outcome ?? "");
  if (call.decision && !call.isApproved) return decisionOf(call);
  const approval = call.approval ? (call.isApproved ? decisionOf(call) : call.outcome ? "" : "waits for approval") : "";
  return [call.asks && !call.outcome ? "waits for an answer" : "", approval, said].filter(Boolean).join(", ");
}

/** @type {Record<string, string>} */
const BECAME = { check: "ran", cross: "failed", back: "handed to the client", pause: "waiting for a person", dots: "under way" };

/** What happened, for somebody who sees a run for the first time. @param {any} run @param {any[]} turns */
export function inWords(run, turns) {
  const lost = turns.flatMap((turn) => turn.attempts).filter((each) => each.reason).map((each) => each.deployment);
  const became = (/** @type {any} */ call) => (call.decision === "denied" ? "denied by a person" : call.decision === "expired" ? "not approved in time" : BECAME[fateOf(call)]);
  const calls = turns.flatMap((turn) => [...turn.calls.values()]).map((call) => (call.verdict === "broken" ? "broken and not run" : became(call)));
  const what = [...new Set(calls)].map((each) => `${calls.filter((other) => other === each).length} ${each}`);
  const who = run.turns && !lost.includes(run.deployment) ? `, then ${run.deployment} answered` : "";
  return [
    lost.length && `${[...new Set(lost)].join(", ")} failed ${many(lost.length, "time")}${who}.`,
    calls.length && `The model made ${many(calls.length, "call")}: ${what.join(", ")}.`,
  ].filter(Boolean).join(" ");
}

/** What a person asked last, and what came of it, where texts are kept. @param {any} run @param {any[]} turns @returns {[string, string][]} */
export function saidOf(run, turns) {
  const asked = messagesOf(run).findLast((message) => message.role === "user");
  const answers = turns.map((turn) => textOf(run, turn, `turn.${turn.index}.text`)).filter(Boolean);
  /** @type {[string, string][]} */ const found = [];
  if (asked) found.push(["asked", wordsOf(asked)]);
  if (answers.length) found.push(["answered", answers.at(-1) ?? ""]);
  return found;
}

/** The messages of the request; none where they are not kept, or cut. @param {any} run @returns {any[]} */
export function messagesOf(run) {
  try {
    const found = JSON.parse(run.content?.request ?? "{}").messages;
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

/** The words of a message; JSON for all else that it has. @param {any} message @returns {string} */
export function wordsOf({ role, content, ...more }) {
  const parts = Array.isArray(content) ? content.map((part) => part.text ?? JSON.stringify(part)) : content ? [content] : [];
  if (Object.keys(more).length) parts.push(JSON.stringify(more));
  return parts.join("\n");
}

/** Why a run cannot be asked again; empty where it can. @param {any} run */
export function whyNoReplay(run) {
  if (run.state === "under_way") return "it is under way";
  if (run.route === "tool" || run.route === "mcp") return "it is a call of a tool without a model";
  if (run.choices > 1) return `it has ${run.choices} choices`;
  if (run.kept === "cut") return "some of its texts were cut at record.content_bytes";
  if (run.kept === "aged_out") return "its texts were removed to make room";
  if (run.kept === "nothing") return "its texts are not kept";
  return "";
}
