"""The clients: which driver plays each, where it lives, and what it calls the errors it raises."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.harness.environment import NODE, locked_version


@dataclass(frozen=True, slots=True)
class Client:
    """One client, or one major version of it."""

    name: str
    title: str
    environment: str
    script: str
    packages: tuple[str, ...]
    """What is shown with its version; the first is the client itself."""
    errors: Mapping[str, str]
    """The client's own exception for each status, and for an error inside a stream (`stream`)."""
    pointed: str
    """How a user points it at Callgate."""
    flavour: str = ""
    """Which of several clients a driver plays."""
    error_fields: frozenset[str] = frozenset({"status", "code", "param"})
    """What its exceptions say of an error, next to the message."""
    stream_code: str | None = "upstream_error"
    """What it says of an error inside a stream: an API may have a list of codes, and a client may keep them to itself."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Behaviours that it does not have, or that are not ours to give, with the reason."""

    @property
    def versions(self) -> dict[str, str]:
        return {package: locked_version(self.environment, package) for package in self.packages}


OPENAI_ERRORS = {
    "400": "BadRequestError",
    "401": "AuthenticationError",
    "404": "NotFoundError",
    "429": "RateLimitError",
    "stream": "APIError",
}

LANGCHAIN_ERRORS = {
    # its own error for a context that is too long is found in the text of openai's exceptions, where 3.x has no code
    "400": "OpenAIInvalidRequestError",
    "401": "OpenAIAuthenticationError",
    "404": "OpenAIModelNotFoundError",
    "429": "OpenAIRateLimitError",
    "stream": "APIError",
}
LANGCHAIN_JS_ERRORS = {**OPENAI_ERRORS, "400": "ContextOverflowError"}
VERCEL_ERRORS = dict.fromkeys(("400", "401", "404", "429"), "APICallError") | {"stream": "StreamProviderError"}
PYDANTIC_ERRORS = {
    "400": "ModelContextWindowExceededError",
    "401": "ModelAuthenticationError",
    "404": "ModelNotFoundError",
    "429": "ModelRateLimitError",
    "stream": "ModelServerError",
}
LITELLM_ERRORS = {**OPENAI_ERRORS, "400": "ContextWindowExceededError", "stream": "MidStreamFallbackError"}
ANTHROPIC_ERRORS = {
    "400": "BadRequestError",
    "401": "AuthenticationError",
    "404": "NotFoundError",
    "429": "RateLimitError",
    "stream": "APIStatusError",
}
LANGCHAIN_ANTHROPIC_ERRORS = {
    "400": "AnthropicInvalidRequestError",
    "401": "AnthropicAuthenticationError",
    "404": "AnthropicModelNotFoundError",
    "429": "AnthropicRateLimitError",
    "stream": "APIStatusError",
}
BY_STATUS = frozenset({"status"})
NO_LIST = {"models": "it does not list models"}
ONE_CALL = "it forces one call of its own and runs no tools"
ONLY_STATUS = "of an error that names no field of the request it shows the status alone"
WHOLE_CALLS = "it streams a call's arguments, and a call is given out whole"

CLIENTS = (
    *(
        Client(
            name=f"openai-{major}",
            title=f"openai (Python), {major}.x",
            environment=f"openai-{major}",
            script="openai_py.py",
            packages=("openai",),
            pointed='`OpenAI(base_url="http://127.0.0.1:8000/v1", api_key=...)`',
            errors=OPENAI_ERRORS,
        )
        for major in (3, 2, 1)
    ),
    Client(
        name="openai-node",
        title="openai (Node)",
        environment=NODE,
        script="openai_node.mjs",
        packages=("openai",),
        pointed='`new OpenAI({ baseURL: "http://127.0.0.1:8000/v1", apiKey })`',
        errors=OPENAI_ERRORS,
    ),
    Client(
        name="langchain-py",
        title="LangChain (Python)",
        environment="langchain",
        script="langchain_py.py",
        packages=("langchain-openai", "openai"),
        pointed="`ChatOpenAI(base_url=..., api_key=..., model=...)`; `stream_usage=True` for usage in streams",
        errors=LANGCHAIN_ERRORS,
        cannot=NO_LIST,
    ),
    Client(
        name="langchain-js",
        title="LangChain (JavaScript)",
        environment=NODE,
        script="langchain_js.mjs",
        packages=("@langchain/openai", "@langchain/core"),
        pointed="`new ChatOpenAI({ model, apiKey, configuration: { baseURL } })`",
        errors=LANGCHAIN_JS_ERRORS,
        cannot=NO_LIST,
    ),
    Client(
        name="pydantic-ai",
        title="Pydantic AI, chat model",
        environment="pydantic-ai",
        script="pydantic_ai_agent.py",
        packages=("pydantic-ai-slim", "openai"),
        pointed="`OpenAIChatModel(name, provider=OpenAIProvider(base_url=..., api_key=...))`",
        errors=PYDANTIC_ERRORS,
        cannot={**NO_LIST, "two_own_tools_streamed": "its `run_stream` takes the first words for the answer"},
    ),
    Client(
        name="vercel-openai",
        title="Vercel AI SDK, `@ai-sdk/openai` chat model",
        environment=NODE,
        script="vercel.mjs",
        flavour="openai",
        packages=("ai", "@ai-sdk/openai"),
        pointed="`createOpenAI({ baseURL, apiKey }).chat(model)`",
        errors=VERCEL_ERRORS,
        cannot=NO_LIST,
    ),
    Client(
        name="vercel-compatible",
        title="Vercel AI SDK, `@ai-sdk/openai-compatible`",
        environment=NODE,
        script="vercel.mjs",
        flavour="compatible",
        packages=("ai", "@ai-sdk/openai-compatible"),
        pointed="`createOpenAICompatible({ name, baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true })(model)`",
        errors=VERCEL_ERRORS,
        cannot=NO_LIST,
    ),
    Client(
        name="openai-agents",
        title="OpenAI Agents SDK (Python), chat model",
        environment="openai-agents",
        script="openai_agents.py",
        packages=("openai-agents", "openai"),
        pointed="`OpenAIChatCompletionsModel(model, AsyncOpenAI(base_url=..., api_key=...))`",
        errors=OPENAI_ERRORS,
        cannot=NO_LIST,
    ),
    Client(
        name="openai-agents-js",
        title="OpenAI Agents SDK (JavaScript), chat model",
        environment=NODE,
        script="openai_agents.mjs",
        packages=("@openai/agents-core", "openai"),
        pointed="`new OpenAIChatCompletionsModel(new OpenAI({ baseURL, apiKey }), model)`",
        errors=OPENAI_ERRORS,
        cannot=NO_LIST,
    ),
    Client(
        name="litellm",
        title="litellm as a client",
        environment="litellm",
        script="litellm_client.py",
        packages=("litellm", "openai"),
        pointed='`completion(model="openai/NAME", api_base=..., api_key=...)`',
        errors=LITELLM_ERRORS,
        error_fields=frozenset({"status"}),
    ),
    Client(
        name="instructor",
        title="instructor",
        environment="instructor",
        script="instructor_py.py",
        packages=("instructor", "openai"),
        pointed="`instructor.from_openai(AsyncOpenAI(base_url=..., api_key=...))`",
        errors=OPENAI_ERRORS,
        cannot={
            **NO_LIST,
            **dict.fromkeys(
                ("two_own_tools", "two_own_tools_streamed", "odd_provider", "odd_provider_streamed"), ONE_CALL
            ),
            **dict.fromkeys(("half_a_call", "half_a_call_streamed", "mixed_twice", "mixed_twice_streamed"), ONE_CALL),
            **dict.fromkeys(("reasoning", "reasoning_streamed"), ONE_CALL),
            **dict.fromkeys(("progress_beside_the_chunks", "progress_as_reasoning"), ONE_CALL),
            **dict.fromkeys(("calls_as_text", "calls_as_text_streamed"), ONE_CALL),
            **dict.fromkeys(("passed_tools", "passed_tools_streamed"), ONE_CALL),
            **dict.fromkeys(
                ("passed_streamed", "passed_error_inside_a_stream", "leaving_what_passes_through"), WHOLE_CALLS
            ),
            **dict.fromkeys(("own_tools", "own_tools_streamed", "server_tool", "server_tool_streamed"), ONE_CALL),
            **dict.fromkeys(("server_tool_then_own", "server_tool_then_own_streamed"), ONE_CALL),
            **dict.fromkeys(("mixed", "mixed_streamed", "slow_server_tool", "slow_server_tool_streamed"), ONE_CALL),
            **dict.fromkeys(("streamed", "usage_of_all_turns_in_a_stream", "written_once_streamed"), WHOLE_CALLS),
            **dict.fromkeys(("refused_before_a_stream", "error_inside_a_stream"), WHOLE_CALLS),
            **dict.fromkeys(("leaving_while_the_model_speaks", "leaving_while_a_server_tool_runs"), WHOLE_CALLS),
        },
    ),
    Client(
        name="openai-responses",
        title="openai (Python), Responses",
        environment="openai-3",
        script="openai_responses.py",
        packages=("openai",),
        pointed='`OpenAI(base_url="http://127.0.0.1:8000/v1", api_key=...).responses`',
        errors=OPENAI_ERRORS,
        stream_code="server_error",
    ),
    Client(
        name="openai-node-responses",
        title="openai (Node), Responses",
        environment=NODE,
        script="openai_responses.mjs",
        packages=("openai",),
        pointed='`new OpenAI({ baseURL: "http://127.0.0.1:8000/v1", apiKey }).responses`',
        errors=OPENAI_ERRORS,
        stream_code="server_error",
    ),
    Client(
        name="openai-agents-responses",
        title="OpenAI Agents SDK (Python), Responses model",
        environment="openai-agents",
        script="openai_agents.py",
        flavour="responses",
        packages=("openai-agents", "openai"),
        pointed="`OpenAIResponsesModel(model, AsyncOpenAI(base_url=..., api_key=...))`, which is what a bare model name means",
        errors=OPENAI_ERRORS,
        stream_code="server_error",
        cannot=NO_LIST,
    ),
    Client(
        name="langchain-py-responses",
        title="LangChain (Python), Responses",
        environment="langchain",
        script="langchain_py.py",
        flavour="responses",
        packages=("langchain-openai", "openai"),
        pointed="`ChatOpenAI(base_url=..., api_key=..., model=..., use_responses_api=True)`",
        errors=LANGCHAIN_ERRORS,
        stream_code="server_error",
        cannot=NO_LIST,
    ),
    Client(
        name="pydantic-ai-responses",
        title="Pydantic AI, Responses model",
        environment="pydantic-ai",
        script="pydantic_ai_agent.py",
        flavour="responses",
        packages=("pydantic-ai-slim", "openai"),
        pointed="`OpenAIResponsesModel(name, provider=OpenAIProvider(base_url=..., api_key=...))`, which is what `openai:` means",
        errors=PYDANTIC_ERRORS,
        stream_code="server_error",
        cannot={**NO_LIST, "two_own_tools_streamed": "its `run_stream` takes the first words for the answer"},
    ),
    Client(
        name="vercel-responses",
        title="Vercel AI SDK, `@ai-sdk/openai`, Responses",
        environment=NODE,
        script="vercel.mjs",
        flavour="responses",
        packages=("ai", "@ai-sdk/openai"),
        pointed="`createOpenAI({ baseURL, apiKey })(model)`",
        errors=VERCEL_ERRORS,
        stream_code="server_error",
        cannot=NO_LIST,
    ),
    Client(
        name="vercel-open-responses",
        title="Vercel AI SDK, `@ai-sdk/open-responses`",
        environment=NODE,
        script="vercel.mjs",
        flavour="open",
        packages=("ai", "@ai-sdk/open-responses"),
        pointed='`createOpenResponses({ name, url: "http://127.0.0.1:8000/v1/responses", apiKey })(model)`',
        errors=VERCEL_ERRORS,
        stream_code="server_error",
        cannot={**NO_LIST, **dict.fromkeys(("wrong_key", "too_many_requests"), ONLY_STATUS)},
    ),
    Client(
        name="anthropic",
        title="anthropic (Python), with its tool runner",
        environment="anthropic",
        script="anthropic_py.py",
        packages=("anthropic",),
        pointed='`Anthropic(base_url="http://127.0.0.1:8000", api_key=...)`',
        errors=ANTHROPIC_ERRORS,
        error_fields=BY_STATUS,
    ),
    Client(
        name="anthropic-node",
        title="@anthropic-ai/sdk (Node), with its tool runner",
        environment=NODE,
        script="anthropic_node.mjs",
        packages=("@anthropic-ai/sdk",),
        pointed='`new Anthropic({ baseURL: "http://127.0.0.1:8000", apiKey })`',
        errors={**ANTHROPIC_ERRORS, "stream": "APIError"},
        error_fields=BY_STATUS,
    ),
    Client(
        name="langchain-anthropic",
        title="LangChain (Python), `ChatAnthropic`",
        environment="langchain",
        script="langchain_py.py",
        flavour="anthropic",
        packages=("langchain-anthropic", "anthropic"),
        pointed="`ChatAnthropic(base_url=..., api_key=..., model=...)`",
        errors=LANGCHAIN_ANTHROPIC_ERRORS,
        error_fields=BY_STATUS,
        cannot=NO_LIST,
    ),
    Client(
        name="pydantic-ai-anthropic",
        title="Pydantic AI, Anthropic model",
        environment="pydantic-ai",
        script="pydantic_ai_agent.py",
        flavour="anthropic",
        packages=("pydantic-ai-slim", "anthropic"),
        pointed="`AnthropicModel(name, provider=AnthropicProvider(base_url=..., api_key=...))`",
        errors={**PYDANTIC_ERRORS, "400": "ModelRequestRejectedError"},
        error_fields=BY_STATUS,
        cannot={**NO_LIST, "two_own_tools_streamed": "its `run_stream` takes the first words for the answer"},
    ),
    Client(
        name="vercel-anthropic",
        title="Vercel AI SDK, `@ai-sdk/anthropic`",
        environment=NODE,
        script="vercel.mjs",
        flavour="anthropic",
        packages=("ai", "@ai-sdk/anthropic"),
        pointed='`createAnthropic({ baseURL: "http://127.0.0.1:8000/v1", apiKey })(model)`',
        errors=VERCEL_ERRORS,
        error_fields=BY_STATUS,
        cannot=NO_LIST,
    ),
)
