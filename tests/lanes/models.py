"""How many of litellm's models that call tools take which lane, and on how many of them tools are offered."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from callgate.models import litellm_model, resolve
from callgate.models.resolve import ModelConfig

MODES: Final = frozenset({"chat", "responses"})
PREFIXES: Final = {"bedrock_converse": "bedrock", "text-completion-openai": "text-completion-openai"}
"""litellm's prefix for names of providers in its price list that have another."""


@dataclass(slots=True)
class Lanes:
    """The lanes of all these models."""

    counts: Counter[str] = field(default_factory=Counter)
    tapped: Counter[str] = field(default_factory=Counter)
    """The models on litellm's lane, by provider."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Models of providers that are in litellm's price list only, by provider: litellm cannot ask them."""

    def report(self) -> list[str]:
        total = self.counts.total()
        run = total - self.counts["refused"] - self.counts["unknown to litellm"]
        shares = ", ".join(f"{count} {lane}" for lane, count in self.counts.most_common())
        tapped = ", ".join(f"{name} {count}" for name, count in self.tapped.most_common())
        unknown = ", ".join(f"{name} {count}" for name, count in self.unknown.most_common())
        return [
            f"{total} models of litellm's call tools: {shares}",
            f"tapped, by provider: {tapped}",
            f"unknown to litellm, by provider: {unknown}",
            f"tools are offered on {run} of {total}, and run where the end of the answer is seen",
        ]


def lanes_of_models() -> Lanes:
    litellm = litellm_model.loaded_at_once()
    found = Lanes()
    for name, known in litellm.model_cost.items():
        if known.get("mode") not in MODES or not known.get("supports_function_calling"):
            continue
        provider = _provider(known)
        entry = ModelConfig(
            "m", {"model": name if name.startswith(f"{provider}/") else f"{provider}/{name}"}, tools=("*",)
        )
        lane: str = resolve.lane_of(entry)
        if lane == "litellm":
            if not _is_known(litellm, entry):
                lane = "unknown to litellm"
                found.unknown[provider] += 1
            elif resolve.why_end_is_unseen(entry) is not None:
                lane = "refused"
            else:
                lane = "tapped"
                found.tapped[provider] += 1
        found.counts[lane] += 1
    return found


def _provider(known: dict[str, Any]) -> str:
    provider = str(known.get("litellm_provider"))
    if provider.startswith("vertex_ai"):
        return "vertex_ai"
    return PREFIXES.get(provider, provider)


def _is_known(litellm: Any, entry: ModelConfig) -> bool:
    if resolve.provider_of(entry.litellm_params) == "github_copilot":
        return True  # litellm would sign in to say so
    try:
        litellm.get_llm_provider(model=entry.litellm_params["model"], api_key="none")
    except Exception:  # noqa: BLE001 -- litellm's own errors, and those of a sign-in, which a known provider has
        return str(entry.litellm_params["model"]).partition("/")[0] in set(litellm.provider_list)
    return True
