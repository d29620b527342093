"""Compares two configs: what the new one allows that the old one did not.

Each setting that guards something says so in its annotation (`callgate.config.schema.guards`). Entries are compared with those
of the same name, and keys also with those of the same secret: an added key, model or tool widens nothing. One that was there
before and comes back is not added (`with_removed`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from callgate.config.schema import Config, PlacedTool, Section
from callgate.config.schema.guards import Guard
from callgate.config.schema.keys import Key

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Widening:
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


def with_removed(known: Config, new: Config) -> Config:
    """Return the new config, and with it the entries of the known one that it does not name.

    A file that is written in several steps may lose an entry in one and get it back, without its end, in the next.
    """
    return new.model_copy(
        update={field: _joined(getattr(known, field), getattr(new, field)) for field in Config.model_fields}
    )


def _joined(known: Any, new: Any) -> Any:
    """Return a setting with the named sections that are known of it and gone."""
    if isinstance(known, tuple) and isinstance(new, tuple):
        names = {name for name, _, _ in _named(new)}
        return (*new, *[section for name, _, section in _named(known) if name not in names][-MAX_REMOVED:])
    if isinstance(known, Mapping) and isinstance(new, Mapping):
        gone = [(name, each) for name, each in known.items() if isinstance(each, Section) and name not in new]
        return {**new, **dict(gone[-MAX_REMOVED:])}
    return new


def guard_of(section: type[Section], field: str) -> Guard | None:
    """Return the guard of a setting, if it has one."""
    if field in SEEN_WHEN_BUILT and issubclass(section, PlacedTool):
        return None
    return next((each for each in section.model_fields[field].metadata if isinstance(each, Guard)), None)


def _of_section(old: Section, new: Section, path: Path, names: tuple[str, ...]) -> Iterator[Widening]:
    for field in type(old).model_fields:
        before, now = getattr(old, field), getattr(new, field)
        if before == now:
            continue
        place, called = (*path, field), (*names, field)
        guard = guard_of(type(old), field)
        if guard is not None and (what := guard.loosened(before, now)) is not None:
            yield Widening(place, ".".join(called), what)
        yield from _of_value(before, now, place, called)


def _of_value(before: Any, now: Any, path: Path, names: tuple[str, ...]) -> Iterator[Widening]:
    """Compare the sections that a setting holds: one, a list of them, or some by name."""
    if isinstance(before, Section) and type(before) is type(now):
        yield from _of_section(before, now, path, names)
    elif isinstance(before, tuple) and isinstance(now, tuple):
        earlier = {name: each for name, _, each in _named(before)}
        for name, index, each in _named(now):
            if type(each) is type(earlier.get(name)):
                yield from _of_section(earlier[name], each, (*path, index), (*names, name))
            if isinstance(each, Key):
                for other in _others_of_same_secret(before, each):
                    yield from _of_section(other, each, (*path, index), (*names, name))
    elif isinstance(before, Mapping) and isinstance(now, Mapping):
        for name, each in now.items():
            if isinstance(each, Section) and type(each) is type(before.get(name)):
                yield from _of_section(before[name], each, (*path, name), (*names, name))


def _others_of_same_secret(keys: tuple[Any, ...], key: Key) -> Iterator[Key]:
    """Yield the keys of other names that one could ask with who may ask with this one."""
    secrets = {key.hash, key.old_hash} - {None}
    for other in keys:
        if isinstance(other, Key) and other.name != key.name and secrets & {other.hash, other.old_hash}:
            yield other


_NAMES = ("model_name", "name", "function", "module")


def _named(sections: tuple[Any, ...]) -> Iterator[tuple[str, int, Section]]:
    """Yield the sections of a list with their names and indexes; of several with one name the later ones with a number."""
    seen: Counter[str] = Counter()
    for index, section in enumerate(sections):
        if not isinstance(section, Section):
            continue
        found = (getattr(section, field, None) for field in _NAMES)
        name = next((each for each in found if each is not None), "")
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name} ({seen[name]})"), index, section
