"""What Callgate does with a field itself, so that no provider is sent it: a sentence for each, which the page shows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """What is done with some places."""

    api: str
    places: str
    """A pattern for their paths."""
    why: str
    lanes: str = ".*"
    """A pattern for the lanes on which it is so."""


DONE: Sequence[Done] = (
    Done(
        ".*",
        r"web_search_options|tools\[\w+\]",
        "A tool of the config runs it, and its calls look as the API has them.",
        lanes="mapped",
    ),
    Done("messages", r"tools\[\w+\]\.max_uses", "Further calls are not run.", lanes="mapped"),
    Done(
        ".*",
        r"tools\[\w+\]\.(allowed|blocked)_domains|tools\[image_generation\]\.size",
        "Given to the tool of the config, or held by looking at the addresses of calls.",
        lanes="mapped",
    ),
    Done(
        ".*",
        r"tools\[web_search\]\.external_web_access|tools\[web_fetch_\d+\]\.use_cache",
        "Says what is done anyway.",
        lanes="mapped",
    ),
    Done(".*", "model", "Names the entry of the config that answers."),
    Done("chat", r"stream_options\.include_usage", "The stream is Callgate's own; it ends with the usage."),
    Done("chat", r"(response_format|.*\.format)\[text\]|tool_choice\[auto\]", "Says what is done anyway."),
    Done("responses", r"text\.format\[text\]|tools\[custom\]\.format\[text\]", "Says what is done anyway."),
    Done("messages", r"tool_choice\[auto\]|tools\[\]\.type", "Says what is done anyway."),
    Done("chat", "function_call", "Says what is done anyway.", lanes="text|cohere"),
    Done("chat", r"messages\[function\]\.name", "The call that it answers is known by its place."),
    Done(
        ".*",
        r"(response_format|text\.format)\[json_schema\](\.json_schema)?\.(name|strict)",
        "A label of the schema, to which the answer is held as far as the provider can.",
    ),
    Done("chat|responses", "parallel_tool_calls", "One call of a turn is run or handed on, and no other."),
    Done(
        "messages",
        r"tool_choice\[.*\]\.disable_parallel_tool_use",
        "One call of a turn is run or handed on, and no other.",
    ),
    Done("responses", r"reasoning\.(summary|generate_summary)", "What the model thinks is shown."),
    Done("messages", r"thinking\[adaptive\]", "Leaves it to the model, as it does by itself."),
    Done("responses", r"tools\[mcp\]\.server_description", "Of a server that is the config's."),
    Done("responses", r"tools\[mcp\]\.require_approval", "Calls wait for the approval of the client."),
    Done("messages", r"thinking\[.*\]\.display", "Whether what the model thinks is shown."),
    Done("responses", r"tools\[shell\]\.environment\[local\]", "Says what is done anyway."),
    Done(
        "responses",
        r"input\[computer_call_output\]\.acknowledged_safety_checks.*",
        "Goes with the screenshot to the provider that asked for it, and no other asks.",
    ),
    Done("responses", "store", "Responses are stored here, or not; no provider stores them."),
    Done("responses", "max_tool_calls", "Limits the calls of the config's tools, in all turns together."),
    Done("responses", r"input\[.*\]\.(id|status)", "Says how an item was answered; a model reads what was said."),
    Done(
        "responses",
        r"input\[mcp_call\]\.(server_label|approval_request_id)",
        "A call of a tool of the config, with its result.",
    ),
    Done(
        "responses",
        r"input\[mcp_list_tools\].*",
        "A list of tools that Callgate or another server showed; the model is offered the tools themselves.",
    ),
    Done(
        "responses",
        r"input\[(additional_tools|tool_search_output)\](\.(execution|tools\[\]))?",
        "Its tools are offered with those of the request, from the first turn on.",
    ),
    Done("responses", r"input\[mcp_approval_request\].*", "A call that nobody decided about is not run."),
    Done(
        "responses",
        r"tool_choice\[allowed_tools\]\.(tools|mode)|tool_choice\[mcp\]\.server_label",
        "Narrows the tools that are offered.",
    ),
    Done("responses", r"tools\[mcp\]", "Selects tools of the config."),
    Done("responses", "background", "The response is made without the connection, and asked for by its id."),
    Done("responses", r"previous_response_id|input\[\]", "Goes on with a response that is stored here."),
    Done("responses", r"input\[mcp_approval_response\]", "Decides about a call of a tool of the config."),
    Done("messages", r"tools\[mcp_toolset\](\.tools\[\])?|mcp_servers\[url\]", "Selects tools of the config."),
    Done(
        "messages",
        r"messages\[assistant\]\.content\[mcp_tool_listing\]",
        "A list of tools that Callgate or another server showed; the model is offered the tools themselves.",
    ),
    Done(
        "messages", r"mcp_servers\[url\]\.tool_configuration\.(enabled|allowed_tools)", "Selects tools of the config."
    ),
    Done(
        "messages",
        r"context_management(\.edits\[.*\].*)?",
        "The context is edited here, once the prompt is large enough.",
        lanes="passed|direct|text|responses|mistral|litellm|gemini|cohere|bedrock",
    ),
    Done("messages", r"thread\[create\]", "The conversation is kept here, under the id of its last message."),
    Done(
        "messages",
        r"thinking\[disabled\]",
        "Says what is done anyway.",
        lanes="passed|direct|text|responses|mistral|litellm",
    ),
)


def why_here(api: str, path: str, lane: str) -> str:
    """Return what is done with a place; empty where nothing is known of it."""
    for done in DONE:
        if re.fullmatch(done.api, api) and re.fullmatch(done.places, path) and re.fullmatch(done.lanes, lane):
            return done.why
    return ""
