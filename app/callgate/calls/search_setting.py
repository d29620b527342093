"""How the tools of a request are kept out of its prompt, to be found by searching."""

from typing import Literal, TypeAlias

import msgspec

SearchMode: TypeAlias = Literal["off", "auto", "on"]
SearchWay: TypeAlias = Literal["auto", "bridge", "reveal"]


class SearchSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's entry or a key says about searching."""

    mode: SearchMode = "off"
    tokens: int = 8000
    """With `auto`, the most tokens of tools in a prompt without searching."""
    share: float = 0.1
    """With `auto`, the same as a share of the model's context, where that is known."""
    pins: tuple[str, ...] = ()
    """Tools whose schemas the model is always sent, as names or globs."""
    way: SearchWay = "auto"
    """How the model gets at what it found: as its provider has it, else through the bridge; or by new entries in its list of tools."""
    result_tokens: int = 4000
    """The limit of one search's result."""

    def over(self, context: int | None) -> int:
        """Return the number of tokens beyond which tools are searched for. `context`: the tokens that the model takes."""
        if self.mode == "on":
            return 0
        if context is None:
            return self.tokens
        return min(self.tokens, int(self.share * context))

    def automatic(self) -> "SearchSetting":
        """Return the same with `auto`."""
        return msgspec.structs.replace(self, mode="auto")

    def joined(self, of_key: "SearchSetting | None") -> "SearchSetting":
        """Return what counts for a key: what it says itself, with the pins of both."""
        if of_key is None:
            return self
        return msgspec.structs.replace(of_key, pins=tuple(dict.fromkeys((*self.pins, *of_key.pins))))


class SearchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the tools of one request are searched."""

    over: int
    """The tokens of tools beyond which they are."""
    pins: tuple[str, ...] = ()
    reveals: bool = False
    may_be_native: bool = False
    """Whether a provider loads what was found itself, where it does."""
    result_tokens: int = 4000


NO_SEARCH = SearchSetting()
