"""Compares two configs: what the new one allows that the old one did not.

Each setting that guards something says so in its annotation (`callgate.config.schema.guards`). Entries are compared with those
of the same name, and keys also with those of the same secret: an added key, model or tool widens nothing. One that was there
before and comes back is not added (`with_removed`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from callgate.access.settings import Key
from callgate.config.schema.guards import Guard
from callgate.config.schema.values import Section
from callgate.config.schema.whole import Config
from callgate.tools.settings import PlacedTool

Path = tuple[str | int, ...]


class Widening(msgspec.Struct, frozen=True):
    """One thing that would be allowed and was not."""

    path: Path
    """The setting's place in the new config."""
    name: str
    """The setting with the names of entries instead of their numbers."""
    what: str

    def __str__(self) -> str:
        return f"{self.name} {self.what}"


MAX_REMOVED: Final = 10_000
"""How many removed entries of one list are remembered."""

SEEN_WHEN_BUILT = ("safety", "require_approval")
"""Settings of the config's own tools that are compared when the tools are built, with what the tools say themselves."""


def widenings(old: Config, new: Config) -> list[Widening]:
    """Return what the settings of the new config allow more than those of the old one."""
    return list(_of_section(old, new, (), ()))


def with_removed(old: Config, new: Config) -> Config:
    """Return the new config, and with it the entries of the known one that it does not name.

    A file that is written in several steps may lose an entry in one and get it back, without its end, in the next.
    """
    return new.model_copy(
        update={
            field: _joined(getattr(old, field), getattr(new, field))
            for field in Config.model_fields
            if guard_of(Config, field) is None  # one that is compared whole has no entries to remember
        }
    )


def _joined(old: Any, new: Any) -> Any:
    """Return a setting with the named sections that are known of it and gone."""
    if isinstance(old, tuple) and isinstance(new, tuple):
        names = {name for name, _, _ in _named_sections(new)}
        return (*new, *[section for name, _, section in _named_sections(old) if name not in names][-MAX_REMOVED:])
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        gone = [(name, value) for name, value in old.items() if isinstance(value, Section) and name not in new]
        return {**new, **dict(gone[-MAX_REMOVED:])}
    return new


def guarded(config: Config) -> Iterator[tuple[Path, str, Guard, Any]]:
    """Yield every guarded setting of a config: its place, its name, its guard, and its value."""
    waiting: list[tuple[Path, tuple[str, ...], Section]] = [((), (), config)]
    while waiting:
        path, names, section = waiting.pop()
        for field in type(section).model_fields:
            value = getattr(section, field)
            place = (*path, field)
            called = (*names, field)
            guard = guard_of(type(section), field)
            if guard is not None:
                yield place, ".".join(called), guard, value
            if isinstance(value, Section):
                waiting.append((place, called, value))
            elif isinstance(value, tuple):
                waiting += [((*place, index), (*called, name), inner) for name, index, inner in _named_sections(value)]
            elif isinstance(value, Mapping):
                waiting += [
                    ((*place, name), (*called, name), inner)
                    for name, inner in value.items()
                    if isinstance(inner, Section)
                ]


def written(config: Config) -> dict[str, Any]:
    """Return the values of all guarded settings as JSON, by the names of the settings, for the next start."""
    return {name: guard.written(value) for _, name, guard, value in guarded(config)}


def widened_since(values: Mapping[str, Any], config: Config) -> list[Widening]:
    """Return what a config allows more than one whose values were written. What was not there is an ordinary addition."""
    widenings: list[Widening] = []
    for path, name, guard, value in guarded(config):
        if name in values and (what := guard.loosened(guard.read(values[name]), value)) is not None:
            widenings.append(Widening(path, name, what))
    return widenings


def guard_of(section: type[Section], field: str) -> Guard | None:
    """Return the guard of a setting, if it has one."""
    if field in SEEN_WHEN_BUILT and issubclass(section, PlacedTool):
        return None
    return next((mark for mark in section.model_fields[field].metadata if isinstance(mark, Guard)), None)


def _of_section(old: Section, new: Section, path: Path, names: tuple[str, ...]) -> Iterator[Widening]:
    for field in type(old).model_fields:
        before = getattr(old, field)
        now = getattr(new, field)
        if before == now:
            continue
        place = (*path, field)
        called = (*names, field)
        guard = guard_of(type(old), field)
        if guard is not None and (what := guard.loosened(before, now)) is not None:
            yield Widening(place, ".".join(called), what)
        yield from _of_value(before, now, place, called)


def _of_value(before: Any, now: Any, path: Path, names: tuple[str, ...]) -> Iterator[Widening]:
    """Compare the sections that a setting holds: one, a list of them, or some by name."""
    if isinstance(before, Section) and type(before) is type(now):
        yield from _of_section(before, now, path, names)
    elif isinstance(before, tuple) and isinstance(now, tuple):
        earlier = {name: section for name, _, section in _named_sections(before)}
        for name, index, section in _named_sections(now):
            if type(section) is type(earlier.get(name)):
                yield from _of_section(earlier[name], section, (*path, index), (*names, name))
            if isinstance(section, Key):
                for other in _others_of_same_secret(before, section):
                    yield from _of_section(other, section, (*path, index), (*names, name))
    elif isinstance(before, Mapping) and isinstance(now, Mapping):
        for name, section in now.items():
            if isinstance(section, Section) and type(section) is type(before.get(name)):
                yield from _of_section(before[name], section, (*path, name), (*names, name))


def _others_of_same_secret(keys: tuple[Any, ...], key: Key) -> Iterator[Key]:
    """Yield the keys of other names that one could ask with who may ask with this one."""
    secrets = {key.hash, key.old_hash} - {None}
    for other in keys:
        if isinstance(other, Key) and other.name != key.name and secrets & {other.hash, other.old_hash}:
            yield other


_NAMES = ("model_name", "name", "function", "module")


def _named_sections(sections: tuple[Any, ...]) -> Iterator[tuple[str, int, Section]]:
    """Yield the sections of a list with their names and indexes; of several with one name the later ones with a number."""
    counts: Counter[str] = Counter()
    for index, section in enumerate(sections):
        if not isinstance(section, Section):
            continue
        names = (getattr(section, field, None) for field in _NAMES)
        name = next((value for value in names if value is not None), "")
        counts[name] += 1
        yield (name if counts[name] == 1 else f"{name} ({counts[name]})"), index, section
