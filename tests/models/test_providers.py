"""The table of providers agrees with litellm where litellm knows a provider, and is the only place that names one."""

import ast
from pathlib import Path

import pytest

from callgate.models import litellm_model
from callgate.models.providers import (
    LITELLMS_OWN,
    MODEL_PREFIXES,
    OPENAI_WIRES,
    PROVIDERS,
    ROWS,
    Provider,
    dialect_of,
    span_name_of,
    suggestions,
)
from callgate.models.translated.openai_shaped import class_for

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of litellm's modules, when they are imported

UNKNOWN_TO_LITELLM: frozenset[str] = frozenset()
"""Rows of the table that litellm does not know: they are asked by what their row says alone."""
ADDRESS_IN_ENTRY = {"azure", "azure_ai", "heroku", "litellm_proxy", "ai21", "gradient_ai"}
"""Providers of which each customer has an address, which litellm does not know either."""
SIGNED_IN = "github_copilot"
"""For this one litellm would sign in to find the address."""


@pytest.fixture
def litellm():
    return litellm_model.loaded_at_once()


def litellms_names(litellm) -> set[str]:
    return {str(getattr(each, "value", each)) for each in litellm.provider_list}


def test_the_rows_that_litellm_does_not_know_are_named(litellm):
    own = {row.name for row in ROWS} - litellms_names(litellm) - in_json(litellm)
    assert own == UNKNOWN_TO_LITELLM


def in_json(litellm) -> set[str]:
    """Providers that litellm defines in JSON, which are not all in its list."""
    from litellm.llms.openai_like.json_loader import JSONProviderRegistry

    return {row.name for row in ROWS if JSONProviderRegistry.exists(row.name)}


def test_litellms_own_providers_are_all_in_the_table(litellm):
    assert litellms_names(litellm) - {row.name for row in ROWS} == set(LITELLMS_OWN.split())


def test_a_row_has_one_name_and_what_its_wire_needs():
    assert len(PROVIDERS) == len(ROWS) + len(LITELLMS_OWN.split())
    for row in ROWS:
        if row.name in UNKNOWN_TO_LITELLM:
            assert row.wire == "openai", f"{row.name}: only a provider with OpenAI's wire can be asked without litellm"
            assert row.base or row.base_variables, f"{row.name}: where it is only its row can say"
        if row.wire not in OPENAI_WIRES:
            assert not row.reasoning_field, row.name
    assert set(PROVIDERS).issuperset(suggestions().values())


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.wire == "openai" and row.name not in UNKNOWN_TO_LITELLM],
    ids=lambda row: row.name,
)
def test_addresses_and_keys_of_providers_asked_without_litellm_are_litellms(litellm, monkeypatch, row):
    for variable in (*row.base_variables, row.key_variable):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(row.key_variable, "k")
    if row.base is None and row.base_variables:
        monkeypatch.setenv(row.base_variables[0], "http://127.0.0.1:9/v1")
    model, name, key, base = litellm.get_llm_provider(f"{row.name}/some-model")
    assert (model, name) == ("some-model", row.name)
    assert base in {None, row.base, "http://127.0.0.1:9/v1"}
    assert key in {None, "k"}


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.wire in OPENAI_WIRES and not row.path and row.name not in UNKNOWN_TO_LITELLM],
    ids=lambda row: row.name,
)
def test_providers_with_openais_wire_have_a_class_of_openais_in_litellm(litellm, row):
    from litellm.llms.github_copilot.chat.transformation import GithubCopilotConfig
    from litellm.llms.openai.chat.gpt_transformation import OpenAIGPTConfig
    from litellm.llms.openai.openai import OpenAIConfig

    if row.access == "azure_deployment":
        pytest.skip("its address is built here, and its class is another's")
    config = GithubCopilotConfig if row.name == SIGNED_IN else class_for(row.name, "some-model")
    kind = config if isinstance(config, type) else type(config)
    assert issubclass(kind, (OpenAIGPTConfig, OpenAIConfig))
    if row.name != SIGNED_IN:
        _, _, _, base = litellm.get_llm_provider(f"{row.name}/some-model", api_key="k")
        assert (
            base
            or row.base
            or row.base_variables
            or row.litellm_finds_address
            or row.name in ADDRESS_IN_ENTRY
            or (row.wire == "openai")
        )


def test_models_without_a_prefix_are_given_the_provider_that_litellm_gives_them(litellm):
    models = {"claude-": "claude-sonnet-4-5", "command-": "command-a-03-2025", "gemini-": "gemini-2.5-flash"}
    assert {prefix: litellm.get_llm_provider(models[prefix])[1] for prefix, _ in MODEL_PREFIXES} == dict(MODEL_PREFIXES)


@pytest.mark.parametrize(
    ("deployment", "name"),
    [("groq/x", "groq"), ("azure/d", "azure.ai.openai"), ("acme/x", "acme"), ("gpt-5", None)],
)
def test_spans_have_the_conventions_name_of_a_provider(deployment, name):
    assert span_name_of(deployment) == name


@pytest.mark.parametrize(
    ("model", "base", "dialect"),
    [
        ("gemini/gemini-2.5-flash", None, "gemini"),
        ("vertex_ai/gemini-2.5-pro", None, "gemini"),
        ("openrouter/google/gemini-3-pro", None, "gemini"),
        ("anthropic/claude-opus-5", None, "anthropic"),
        ("bedrock/eu.anthropic.claude-sonnet-5", None, "anthropic"),
        ("vertex_ai/claude-sonnet-5", None, "anthropic"),
        ("ollama_chat/qwen3", None, "llama_cpp"),
        ("openai/gpt-5", None, "openai"),
        ("openai/gpt-5", "https://gateway.example/v1", "openai"),
        ("gpt-5", None, "openai"),
        ("azure/my-deployment", "https://x.example", "openai"),
        ("openai/qwen3", "http://127.0.0.1:8080/v1", "full"),
        ("hosted_vllm/qwen3", "http://127.0.0.1:8080/v1", "full"),
        ("demo/demo", None, "full"),
    ],
)
def test_auto_goes_by_the_provider(model, base, dialect):
    assert dialect_of(model, base) == dialect


# No other module names a provider ---------------------------------------------------------------------------------------

APP = Path(litellm_model.__file__).parents[1]
LANES = {"bedrock", "claude", "claude_elsewhere", "cohere", "gemini"}
"""Modules that are about one provider."""
OTHER_MEANINGS = {
    "models/settings.py": {"mistral", "minimax", "openai", "gemini", "anthropic"},  # formats of calls and dialects
    "models/building.py": {"openai", "anthropic"},  # wires
    "schemas/dialects.py": {"openai", "gemini", "anthropic"},  # dialects
    "text_calls": {"mistral", "minimax", "gigachat"},  # formats of calls
    "conversation/usage.py": {"bedrock", "cohere", "gemini", "anthropic"},  # the APIs whose counts are read
    "telemetry/logs.py": {"openai"},  # a logger's name
    "models/translated/model.py": {"anthropic", "bedrock", "cohere", "gemini"},  # wires
    "models/resolve.py": {"anthropic", "openai"},  # wires
    "models/litellm_model.py": {"openai"},  # a wire
}
"""Words that are names of providers, and mean something else there."""
WORDS = {
    "a2a",
    "custom",
    "manus",
    "meta",
    "sail",
    "poe",
    "prism",
    "synthetic",
    "topaz",
    "transcribe",
    "infinity",
    "cursor",
}
"""Names of providers that are ordinary words."""


def test_only_the_table_and_the_lanes_of_single_providers_name_one():
    names = PROVIDERS.keys() - WORDS
    strange = []
    for file in sorted(APP.rglob("*.py")):
        place = file.relative_to(APP).as_posix()
        if place.endswith("models/providers.py") or file.stem in LANES:
            continue
        allowed = set().union(*(words for start, words in OTHER_MEANINGS.items() if place.startswith(start)))
        strange += [
            f"{place}:{node.lineno}: {node.value!r}"
            for node in ast.walk(ast.parse(file.read_text("utf-8")))
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.partition("/")[0] in names - allowed
            and " " not in node.value
        ]
    assert not strange, "\n".join(strange)


def test_an_odd_field_is_read_of_the_provider_that_has_it_alone():
    from callgate.conversation.events import ExtraField, ReasoningDelta
    from callgate.models.direct.chunks import ChunkReader, read_completion

    chunk = {"choices": [{"index": 0, "delta": {"thoughts": "hm"}}]}
    row = Provider(name="acme", wire="openai", reasoning_field="thoughts")
    assert ChunkReader(reasoning_field=row.reasoning_field).read(chunk) == [ReasoningDelta("hm", "reasoning_content")]
    assert read_completion(chunk, reasoning_field=row.reasoning_field) == [ReasoningDelta("hm", "reasoning_content")]
    assert ChunkReader().read(chunk) == [ExtraField("thoughts", "hm")]
