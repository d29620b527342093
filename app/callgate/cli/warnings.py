"""What a config has that is no mistake and will disappoint: for `check`, and before a server starts."""

from collections.abc import Iterator, Sequence

from callgate.cli.making import Mistake
from callgate.cli.providers import missing_key
from callgate.config.load import Loaded
from callgate.config.schema.whole import Config
from callgate.models.building import defined_provider
from callgate.runtime.tool_patterns import approvals_by_nobody, tools_offered_to_no_model, unruled_tools
from callgate.tools.registry import RegisteredTool, Registry


def warnings_of(loaded: Loaded, registry: Registry) -> list[str]:
    """Return the warnings, each with its place."""
    config = loaded.config
    checked = [tools_offered_to_no_model(config), approvals_by_nobody(config, registry), unruled_tools(registry)]
    mistakes = [mistake for mistake in checked if mistake is not None]
    mistakes += [*_missing_keys(loaded), *_unused_providers(config), *_untold_tools(loaded, registry.tools())]
    return [str(loaded.complaint(mistake)) for mistake in mistakes]


def _missing_keys(loaded: Loaded) -> Iterator[Mistake]:
    for index, entry in enumerate(loaded.config.model_list):
        if defined_provider(entry, loaded.config) is not None:
            continue
        missing = missing_key(entry.litellm_params.reveal())
        if missing is not None:
            provider, variable = missing
            why = f"has no `api_key`, and {variable} is not set, so that {provider} will refuse `{entry.model_name}`"
            yield ("model_list", index, "litellm_params"), f"{why}: `export {variable}=...` first"


def _unused_providers(config: Config) -> Iterator[Mistake]:
    used = {defined_provider(entry, config) for entry in config.model_list}
    for name in config.providers:
        if name not in used:
            yield (
                ("providers", name),
                f"no model is of this provider: write `model: {name}/...` in an entry of `model_list`",
            )


def _untold_tools(loaded: Loaded, tools: Sequence[RegisteredTool]) -> Iterator[Mistake]:
    """Yield the Python functions of which a model is told too little to call them."""
    for registered in tools:
        if registered.tool.kind != "python":
            continue
        properties = registered.tool.parameters.get("properties", {})
        untyped = [name for name, schema in properties.items() if not set(schema) - {"description", "default"}]
        if registered.tool.description:
            lacks = []
        else:
            lacks = ["no description (write a docstring)"]
        if untyped:
            lacks.append(f"no type for {', '.join(f'`{name}`' for name in untyped)} (write type hints)")
        if lacks:
            yield (
                _place_of(loaded, registered),
                f"the model is told too little of {registered.name}: {' and '.join(lacks)}",
            )


def _place_of(loaded: Loaded, tool: RegisteredTool) -> tuple[str | int, ...]:
    module, _, function = tool.tool.source.partition(":")
    for index, entry in enumerate(loaded.config.tools):
        if getattr(entry, "module", None) == module or getattr(entry, "function", None) == f"{module}:{function}":
            return "tools", index
    return ("tools",)
