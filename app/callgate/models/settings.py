"""The models, as litellm has them, and what Callgate adds."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from callgate.config.schema.faces import ResponsesOfOne
from callgate.config.schema.guards import ADMITS, OFFERED, WIDENS_ON, WidensTo
from callgate.config.schema.hosted import HostedToolsSetting
from callgate.config.schema.tool_search import ToolSearch, ToolSearchSection
from callgate.config.schema.values import (
    NO_BOOLEAN,
    Count,
    Globs,
    OfferSetting,
    Seconds,
    Section,
    Switch,
    ToolEvents,
    UsageSetting,
    WebAddress,
    off_or_on,
    shape,
)
from callgate.config.secret_names import VARIABLE_NAME

TextFormat: TypeAlias = Literal[
    "hermes",
    "granite",
    "granite_20b_fc",
    "phi4",
    "ernie45",
    "tool_calls",
    "apriel",
    "nemotron",
    "internlm2",
    "apertus",
    "gigachat3",
    "inkling",
    "command_r",
    "command_r_plus",
    "xml",
    "antml",
    "minimax",
    "minimax_m3",
    "dots",
    "step3",
    "deepseek_dsml",
    "kimi_k3",
    "qwen3_coder",
    "seed_oss",
    "minicpm5",
    "glm45",
    "hyperclovax",
    "hunyuan",
    "longcat",
    "solar",
    "mistral",
    "deepseek_v3",
    "deepseek_v31",
    "kimi_k2",
    "functionary_v32",
    "functionary_v31",
    "glm4",
    "harmony",
    "muse",
    "gemma4",
    "functiongemma",
    "pythonic",
    "olmo3",
    "llama3_json",
    "litellm_json",
    "react",
]
ToolCalling: TypeAlias = Literal["auto", "native", "json", TextFormat]
CONSTRAINED: tuple[ToolCalling, ...] = ("auto", "json", "litellm_json", "llama3_json")
"""The formats whose call is one bare JSON object, whose schema a server can enforce."""
SchemaDialect: TypeAlias = Literal["auto", "full", "openai", "gemini", "anthropic", "llama_cpp"]
Lane: TypeAlias = Literal["auto", "direct", "responses", "translated", "litellm"]

TrustSetting: TypeAlias = Annotated[Literal["auto", "on", "off"], BeforeValidator(off_or_on)]
ThinkingSetting: TypeAlias = Literal["auto", "prefilled", "none"]


ProviderName: TypeAlias = Annotated[
    str, shape(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", "should be 1 to 64 letters, digits, `.`, `_` or `-`")
]


def _no_variable(key: SecretStr | None) -> SecretStr | None:
    """Refuse the name of a variable where a key is meant."""
    if key is not None and (name := VARIABLE_NAME.fullmatch(key.get_secret_value())):
        raise PydanticCustomError(
            "variable", "is the name of an environment variable: write `os.environ/{name}`", {"name": name[0]}
        )
    return key


class ProviderSection(Section):
    """A provider that Callgate does not know, or knows otherwise. Its models are `NAME/model` in `litellm_params`."""

    base_url: WebAddress
    """The address of its API, as its documentation gives it: usually with `/v1` at the end."""
    api_key: Annotated[SecretStr | None, AfterValidator(_no_variable)] = None
    """Its key, for all its models that have none of their own; `os.environ/NAME` is the usual way."""
    wire: Literal["openai", "responses", "anthropic"] = "openai"
    """The API it has: OpenAI's Chat Completions, OpenAI's Responses, or Anthropic's Messages."""
    headers: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Headers of each request to it."""
    body: Mapping[str, Any] = Field(default_factory=dict)
    """Fields of the body of each request to it, where the request or the model's entry does not set them."""
    developer_role: Switch = False
    """Whether it knows the role `developer`; if not, such messages are sent as `system`."""
    stream_options: Switch = True
    """Whether streams may be asked for their token counts with `stream_options`. Off for servers that refuse it."""
    reasoning_field: Annotated[str, Field(max_length=64)] = ""
    """The field of its messages that holds reasoning, where that is neither `reasoning_content` nor `reasoning`."""
    schema_dialect: SchemaDialect = "auto"
    """What it takes of JSON Schema; `auto` goes by the names of its models."""
    open_models: Switch = False
    """Whether it serves open models by their chat templates, so that a model may turn out not to call tools natively."""


class LitellmParams(BaseModel):
    """litellm's parameters for one model, any of them, passed on as they are.

    Its repr names the parameters without their values: any of them may be a secret.
    """

    model_config = ConfigDict(
        extra="allow", defer_build=True, frozen=True, protected_namespaces=(), hide_input_in_errors=True
    )

    model: Annotated[str, Field(min_length=1, description="litellm's name of the model: `provider/model`.")]
    api_key: Annotated[SecretStr | None, AfterValidator(_no_variable)] = Field(
        None, description="The provider's key; `os.environ/NAME` is the usual way."
    )
    api_base: str | None = Field(None, description="The provider's address, where it is not the usual one.")

    def reveal(self) -> dict[str, Any]:
        """The parameters as litellm takes them, secrets included. A copy; what is not set is left out."""
        named: dict[str, Any] = {"model": self.model}
        if self.api_key is not None:
            named["api_key"] = self.api_key.get_secret_value()
        if self.api_base is not None:
            named["api_base"] = self.api_base
        return named | dict(self.__pydantic_extra__ or {})

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        yield "model", self.model
        yield "others", sorted(self.reveal().keys() - {"model"})


FinishReason: TypeAlias = Annotated[str, Field(max_length=200), shape(r"[A-Za-z0-9]", "a word")]
"""A finish reason, as its provider writes it; capitals and dashes make no difference."""


class FinishReasons(Section):
    """What further finish reasons of the model's server mean."""

    stop: Annotated[tuple[FinishReason, ...], ADMITS] = ()
    """It ended in order: its calls run."""
    tool_calls: Annotated[tuple[FinishReason, ...], ADMITS] = ()
    """It ended in order, with calls."""
    length: Annotated[tuple[FinishReason, ...], ADMITS] = ()
    """It was cut at its length: calls that came whole before that run."""
    content_filter: tuple[FinishReason, ...] = ()
    """Its provider withheld the rest: nothing of it runs."""


class ContextSection(Section):
    """How the prompts of a model are kept within its context."""

    clear_results_above: Annotated[float | None, Field(gt=0, lt=1), NO_BOOLEAN] = None
    """The share of the model's context beyond which the oldest results of the config's tools become one line each, by which
    `read_more` finds them again; off where it is not set."""
    tokens: Count | None = None
    """The tokens of the model's context; `max_input_tokens` of `model_info` where it is not set."""


class ModelEntry(Section):
    """One entry of `model_list`: litellm's block as it is, and what Callgate adds to it."""

    model_name: Annotated[str, Field(min_length=1)]
    """The name clients ask for. `openai/*` stands for all models of a provider; the same name twice shares the load."""
    litellm_params: LitellmParams
    """Which model it is and how to reach it, in litellm's words."""
    model_info: Mapping[str, Any] = Field(default_factory=dict, repr=False)
    """What litellm should know of a model it does not know, for example `supports_function_calling`."""
    tools: Globs = ()
    """The tools of this config that are offered to it, as names or globs; none unless named."""
    offer: Annotated[OfferSetting, OFFERED] = "any"
    """Which requests they are offered to, unless the key says: `any`, or only those `with_client_tools`, that is with tools of
    their own, so that the side requests of agents (titles, summaries) have none."""
    tool_search: ToolSearch = ToolSearchSection.by_default(mode="off")
    """Whether the model searches for tools instead of being sent all of them: `off`, `on`, `auto` where there are many, or more
    about it. What may be called stays the same."""
    hosted_tools: HostedToolsSetting = Field(default_factory=dict)
    """Tools of this config that stand for tools which requests to it declare, where that differs from the top-level `hosted_tools`."""
    fallbacks: tuple[str, ...] = ()
    """Models to ask instead when this one fails before it has sent any content, in order."""
    tool_calling: ToolCalling = "auto"
    """How it calls tools: natively, or asked in the prompt and read back from its text in the format named."""
    thinking: ThinkingSetting = "auto"
    """Whether its chat template opens the thinking, where calls are read from its text: `prefilled` takes the text for
    reasoning up to `</think>`, `none` never waits for one; `auto` goes by the name and the first answers."""
    constrain_calls: Switch = False
    """Have the server enforce the form of a demanded call; for bare JSON formats and servers that know `json_schema`."""
    lane: Lane = "auto"
    """Who speaks to it: Callgate itself (`direct`), Callgate in the provider's own words (`translated`), or litellm."""
    provider_selectors: Annotated[Switch, WIDENS_ON] = False
    """Let requests choose among the provider's models and hosts, with fields such as `models`, `route` and `provider`, and
    name what is kept in your account there, with fields such as `file_id`."""
    trust_litellm: Annotated[TrustSetting, WidensTo(("off", "auto", "on"))] = "auto"
    """Whether its calls run where litellm speaks to it: `auto` where the provider's own end of the answer was seen, `on` also
    on litellm's word, `off` never."""
    finish_reasons: FinishReasons = FinishReasons.by_default()
    """What words mean with which its server ends an answer and which Callgate does not know; no call runs beside an unknown one."""
    events: ToolEvents | None = None
    """How clients are shown that its tools run, unless the request or its key sets it; `off` by default."""
    usage: UsageSetting = "auto"
    """Which token counts an answer reports, unless the request or its key sets it: the `sum` over its turns, or those of the
    `last_turn`, for agents that take them for the size of their context; `auto` knows some of these agents by name."""
    concurrency: Count | None = None
    """How many requests may be under way with it; further ones get a 503. Entries with one name add up."""
    response_format_with_tools: Switch = True
    """Whether its provider takes a `response_format` beside tools. If not, the format is kept back until the model has
    no more calls to make, and the answer is then asked for once more, without tools."""
    schema_dialect: SchemaDialect = "auto"
    """What its provider takes of JSON Schema, for the schemas of the config's tools; `auto` goes by the provider."""
    timeout: Seconds | None = None
    """Seconds for a whole answer; `upstream.total_seconds` where it is not set."""
    stream_timeout: Seconds | None = None
    """Seconds a stream may be silent; `upstream.idle_seconds` where it is not set."""
    responses: ResponsesOfOne = ResponsesOfOne.by_default()
    """How its responses are served."""
    context: ContextSection = ContextSection.by_default()
    """How its prompts are kept within its context."""

    @model_validator(mode="after")
    def _context_is_known(self) -> "ModelEntry":
        if self.context.clear_results_above is not None and self.context_tokens() is None:
            raise PydanticCustomError(
                "context",
                "`context.clear_results_above` needs the size of the model's context: set `context.tokens`, or `max_input_tokens` in"
                " `model_info`",
            )
        return self

    def context_tokens(self) -> int | None:
        """Return the tokens of its context, as far as the config says."""
        listed = self.model_info.get("max_input_tokens")
        if self.context.tokens is None and type(listed) is int and listed > 0:
            return listed
        return self.context.tokens

    @model_validator(mode="after")
    def _can_be_constrained(self) -> "ModelEntry":
        if self.constrain_calls and self.tool_calling not in CONSTRAINED:
            raise PydanticCustomError(
                "constrain_calls",
                "`constrain_calls` works only with `tool_calling: {formats}`",
                {"formats": "`, `".join(CONSTRAINED)},
            )
        return self
