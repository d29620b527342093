"""Says what searching for tools would save, where it is off."""

from collections.abc import Iterator

from callgate.calls.search_setting import NO_SEARCH
from callgate.config.schema.whole import Config
from callgate.models.building import model_entry
from callgate.models.context import search_plan
from callgate.tools.offered_tools import OfferedTools
from callgate.tools.registry import Registry


def search_savings(config: Config, registry: Registry) -> Iterator[str]:
    """Yield a sentence for each model whose tools are so many that `auto` would search them. Of a source that is not open no tools
    are counted."""
    offered = OfferedTools(registry)
    offered.all()
    for section in config.model_list:
        entry = model_entry(section, config)
        if entry.tool_search.mode != "off":
            continue
        automatic = search_plan(NO_SEARCH.automatic(), entry)
        cost = offered.cost(entry.tools, ("*",), None, automatic)
        if "search_would_save" in cost:
            yield (
                f"{entry.model_name} reads {cost['tools']} tools with every request, about {cost['prompt_tokens']} tokens;"
                f" `tool_search: auto` would save {cost['search_would_save']} of them"
            )
