"""Prints a recorded run turn by turn: the request, the model that answered, and the outcome of each call."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from callgate.conversation.usage import Usage
from callgate.records.row import Kept, RecordedRun, RunEvent, RunRow
from callgate.telemetry.terminal import in_a_line

NOT_KEPT: Final[Mapping[str, str]] = {
    Kept.NOTHING: "not kept (`record.content: on` keeps them, unless the request forbids it)",
    Kept.CONTENT: "kept",
    Kept.MEMORY: "kept in memory, for this key alone",
    Kept.CUT: "kept, some cut at record.content_bytes",
    Kept.AGED_OUT: "removed to make room (record.keep)",
}


def story(run: RecordedRun, replays: Iterable[str], *, content: bool) -> Iterator[str]:
    """Yield the lines of a run; with `content` also its texts."""
    yield from _head(run.row, list(replays))
    shown_texts = run.content if content else {}
    if content:
        yield from _text("request", shown_texts.get("request"))
    for event in run.events:
        place = "" if not event.choice else f" of choice {event.choice + 1}"
        match event.kind:
            case "turn_started":
                yield f"\nturn {(event.turn or 0) + 1}{place}, from {event.at:.3f} s"
            case "attempt":
                yield _attempt(event.facts)
            case "turn_ended":
                yield from _turn(event, shown_texts)
            case "call_progress" if "approval" in event.facts:
                yield f"  ⏸ {in_a_line(str(event.facts['id']))} waits for a person, from {event.at:.3f} s"
            case "call_progress" if "input" in event.facts or event.facts.get("approved"):
                what = "asked a person" if "input" in event.facts else "was approved"
                yield f"  ▶ {in_a_line(str(event.facts['id']))} {what} at {event.at:.3f} s"
            case "call_ended":
                facts = event.facts
                mark = "✓" if facts["outcome"] == "returned" else "✗"
                cut = f", {facts['cut_bytes']} cut" if facts.get("cut_bytes") else ""
                name = in_a_line(str(facts.get("name") or ""))
                yield f"  {mark} {name} {facts['outcome']} after {facts['seconds']:.3f} s, {facts['bytes']} bytes{cut}"
                yield from _text("result", shown_texts.get(_part(event, f"call.{facts['id']}.result")))
            case "content_cut":
                yield f"\ncut: {', '.join(map(in_a_line, event.facts['parts']))}"
            case "calls_handed_back":
                yield f"  ↩ {len(event.facts['calls'])} calls went to the client{place}"
            case "failed":
                yield f"\nfailed{place} after {event.at:.3f} s: {event.facts['reason']}"
            case "ended":
                note = f" ({event.facts['note']})" if event.facts.get("note") else ""
                yield f"\n{event.facts['ending'].replace('_', ' ')}{place} after {event.at:.3f} s{note}"


def _head(row: RunRow, replays: list[str]) -> Iterator[str]:
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(row.began))
    if row.seconds is None:
        took = "under way"
    else:
        took = f"{row.state.replace('_', ' ')} after {row.seconds:.3f} s"
    if row.error:
        error = f": {row.status} {row.error}"
    else:
        error = f", finish_reason {row.finish_reason or 'none'}"
    yield f"{row.id}  {began}"
    yield f"  {took}{in_a_line(error)}"
    failed = max(row.attempts - row.turns, 0)
    unwell = [f"{row.broken_calls} broken"] * (row.broken_calls > 0) + [f"{row.failed_calls} failed"] * (
        row.failed_calls > 0
    )
    cost = "" if row.cost is None else f", ${row.cost:.6f}"
    if row.deployment not in ("", row.model):
        who = f", answered by {row.deployment}"
    else:
        who = ""
    yield f"  model {in_a_line(row.model)}{in_a_line(who)}" + (f", {failed} attempts failed" if failed else "")
    calls = f"{row.calls + row.broken_calls} calls" + (f" ({', '.join(unwell)})" if unwell else "")
    yield f"  {row.turns} turns, {calls}, {row.tokens_in}+{row.tokens_out} tokens{_cache(row.tokens_cached, row.tokens_cache_written)}{cost}"
    trace = f", trace {row.trace_id}" if row.trace_id else ""
    yield f"  {row.route} request {in_a_line(row.request_id)} of key {in_a_line(row.key or '-')}{trace}"
    yield f"  texts: {NOT_KEPT.get(row.kept, row.kept)}"
    for word, ids in (("asks again", [row.replay_of]), ("asked again by", replays)):
        if any(ids):
            yield f"  {word} {', '.join(ids)}"
    if row.findings:
        yield f"  findings: {', '.join(row.findings)}"


def _cache(tokens_read: int, tokens_written: int) -> str:
    """Say how much of the prompt was in the provider's cache."""
    words = {"read from the cache": tokens_read, "written to it": tokens_written}
    shares = [f"{tokens} {word}" for word, tokens in words.items() if tokens]
    if not shares:
        return ""
    return f" ({', '.join(shares)})"


def _attempt(facts: Mapping[str, Any]) -> str:
    if facts.get("host"):
        who = f"{facts['deployment']} at {facts['host']}"
    else:
        who = str(facts.get("deployment", ""))
    if facts.get("wait"):
        waited = f", {facts['wait']:.3f} s after the one before"
    else:
        waited = ""
    if facts.get("instead_of"):
        instead = f" for {in_a_line(facts['instead_of'])}, which is cooling down"
    else:
        instead = ""
    if not facts.get("reason"):
        return f"  ✓ attempt {facts['number']}: {in_a_line(who)} answered{waited}{instead}"
    status = f" {facts['status']}" if facts.get("status") else ""
    why = in_a_line(f"{facts['reason']}{status}: {facts.get('detail', '')}".rstrip(": "))
    return f"  ✗ attempt {facts['number']}: {in_a_line(who)} failed after {facts['seconds']:.3f} s{waited}: {why}"


def _turn(event: RunEvent, shown_texts: Mapping[str, str]) -> Iterator[str]:
    facts = event.facts
    reasons = ", ".join(facts.get("finish_reasons") or ()) or "none"
    usage = facts.get("usage") or {}
    if usage:
        counts = Usage(usage).counts()
        cache = _cache(counts.cached, counts.cache_written)
        tokens = f", {usage.get('prompt_tokens', 0)}+{usage.get('completion_tokens', 0)} tokens{cache}"
    else:
        tokens = ""
    if facts.get("first_seconds") is not None:
        first = f", first words after {facts['first_seconds']:.3f} s"
    else:
        first = ""
    who = in_a_line(facts.get("deployment") or facts.get("model") or "the model")
    yield f"  {who} answered in {facts['seconds']:.3f} s{first}, finish_reason {in_a_line(reasons)}{tokens}"
    if facts.get("findings"):
        yield f"  ! {', '.join(facts['findings'])}"
    yield from _text("said", shown_texts.get(_part(event, f"turn.{event.turn}.text")))
    for call in facts.get("calls") or ():
        name = in_a_line(call.get("name") or "(no name)")
        if call.get("repairs"):
            repairs = f", repaired: {', '.join(call['repairs'])}"
        else:
            repairs = ""
        if call["verdict"] == "broken":
            problem = call.get("problem") or {}
            why = "; ".join(f"{word} {in_a_line(text)}" for word, text in problem.items())
            yield f"  ✗ call {name} ({in_a_line(call['id'])}): broken, {call['flaw']}; not run{': ' + why if why else ''}"
        elif call.get("outcome") == "not_run":
            yield f"  ✗ call {name} ({in_a_line(call['id'])}): whole; not run, one at a time"
        elif call.get("owner") == "client":
            yield f"  ↩ call {name} ({in_a_line(call['id'])}): whole, the client's own{repairs}"
        else:
            yield f"  → call {name} ({in_a_line(call['id'])}): whole{repairs}"
        yield from _text("arguments", shown_texts.get(_part(event, f"call.{call['id']}.arguments")))


def _part(event: RunEvent, part: str) -> str:
    if event.choice:
        return f"choice.{event.choice}.{part}"
    return part


def _text(what: str, text: str | None) -> Iterator[str]:
    if text is not None:
        yield f"      {what}: " + text.replace("\n", "\n        ")
