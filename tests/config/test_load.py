import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.config.load import find, load
from callgate.config.problems import ConfigError
from callgate.config.redaction import Redactor
from callgate.config.schema.values import Section
from callgate.config.schema.whole import Config
from callgate.tools.kinds.mcp.settings import McpServer
from callgate.tools.kinds.python.settings import PythonTool

DEMO = """
model_list:
  - model_name: demo
    litellm_params: {model: demo/demo}
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="config.yaml"):
        file = tmp_path / name
        file.write_text(text)
        return file

    return write


@pytest.fixture
def refused(write):
    """The problems of a file, each as `line:column: path: message`."""

    def refused(text, environ=None, flags=None):
        file = write(text)
        with pytest.raises(ConfigError) as error:
            load(file, environ=environ or {}, flags=flags)
        return [str(problem).removeprefix(f"{file}:") for problem in error.value.problems]

    return refused


def test_without_any_file_the_demo_model_and_the_built_in_tools_are_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    loaded = load(environ={})

    assert loaded.path is None
    assert [(entry.model_name, entry.tools) for entry in loaded.config.model_list] == [("demo", ("*",))]
    assert loaded.config.tools == (PythonTool(kind="python", module="callgate.tools.builtin"),)
    assert loaded.folder() == tmp_path


def test_the_file_given_comes_before_the_environments_and_that_before_the_usual_one(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    assert find(None, {}) is None
    usual, named, given = write(DEMO), write(DEMO, "named.yaml"), write(DEMO, "given.yaml")

    assert find(None, {}) == usual.relative_to(tmp_path)
    assert find(None, {"CALLGATE_CONFIG": str(named)}) == named
    assert find(given, {"CALLGATE_CONFIG": str(named)}) == given
    assert load(given, environ={}).folder() == tmp_path


def test_a_file_that_was_named_and_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "nowhere.yaml", environ={})


def test_flags_outrank_variables_and_variables_outrank_the_file(write):
    file = write("server: {host: 10.0.0.1, port: 1, drain_seconds: 7}\nlogging: {level: debug}\n" + DEMO)
    environ = {"CALLGATE_HOST": "10.0.0.2", "CALLGATE_PORT": "2", "CALLGATE_LOG_LEVEL": "error"}

    config = load(file, environ=environ, flags={"server.port": 3, "server.host": None}).config

    assert (config.server.host, config.server.port, config.server.drain_seconds) == ("10.0.0.2", 3, 7)
    assert config.logging.level == "error"


def test_a_variable_works_where_the_file_has_no_such_block(write):
    assert load(write(DEMO), environ={"CALLGATE_PORT": "9000"}).config.server.port == 9000
    assert load(write("server:\n" + DEMO), environ={"CALLGATE_PORT": "9000"}).config.server.port == 9000


def test_a_mistake_in_a_variable_or_a_flag_names_that_variable_or_flag(refused):
    assert refused(DEMO, {"CALLGATE_PORT": "eighty"}, {"logging.format": "xml"}) == [
        "command line: logging.format: should be `auto`, `json` or `console`",
        "environment variable CALLGATE_PORT: server.port: should be a whole number",
    ]


def test_what_a_flag_replaces_need_not_resolve(write):
    file = write("server: {host: os.environ/NOWHERE}\n" + DEMO)

    assert load(file, environ={}, flags={"server.host": "127.0.0.1"}).config.server.host == "127.0.0.1"


def test_a_config_is_immutable(write):
    config = load(write(DEMO), environ={}).config

    with pytest.raises(ValueError, match="frozen"):
        config.server.port = 1
    with pytest.raises(ValueError, match="frozen"):
        config.model_list[0].litellm_params.model = "other"
    assert config == load(write(DEMO), environ={}).config


def test_an_empty_block_means_its_defaults(write):
    text = "server:\n  # port: 1\nkeys:\ntools:\nloop:\n" + DEMO

    assert load(write(text), environ={}).config == load(write(DEMO), environ={}).config


def test_all_mistakes_are_reported_at_once_each_with_its_place(refused):
    text = """\
version: 2
sever: {port: 1}
server:
  port: eighty
  drain_seconds: yes
auth: keyss
litellm_settings: {drop_params: true}
model_list:
  - model_name: m
    api_key: x
    tool_callin: hermes
    litellm_params: {model: a/b}
    tool_calling: hermess
    tools: "*"
  - litellm_params: {api_base: x}
    model_name: n
tools:
  - kind: htp
  - module: x
  - kind: http
    name: a
    urll: x
    query: {a: [1]}
  - kind: python
    module: a.b
    function: c:d
loop: 5
"""
    assert refused(text) == [
        "1:10: version: should be `1`",
        "2:1: sever: unknown key `sever`; did you mean `server`?",
        "4:9: server.port: should be a whole number",
        "5:18: server.drain_seconds: should be a number",
        "6:7: auth: should be `keys`, `off`, or a mapping with `oidc`; did you mean `keys`?",
        (
            "7:1: litellm_settings: unknown key `litellm_settings`; of a litellm proxy's file only `model_list` is read: `num_retries` is `upstream.retries` here, `request_timeout` is "
            "`upstream.total_seconds`, `fallbacks` belong into entries of `model_list`, `callbacks` are `traces`"
        ),
        "10:5: model_list.0.api_key: unknown key `api_key`; it belongs under `litellm_params`: indent it below that line",
        "11:5: model_list.0.tool_callin: unknown key `tool_callin`; did you mean `tool_calling`?",
        "13:19: model_list.0.tool_calling: is not one of the 49 choices; did you mean `hermes`?",
        '14:12: model_list.0.tools: should be a list, such as `["*"]`',
        "15:21: model_list.1.litellm_params.model: is required",
        "18:5: tools.0: `kind` should be `python`, `http`, `openapi`, `command`, `web_search` or `web_fetch`; did you mean `http`?",
        "19:5: tools.1: needs a `kind`: `python`, `http`, `openapi`, `command`, `web_search` or `web_fetch`",
        "20:5: tools.2.description: is required",
        "20:5: tools.2.url: is required",
        "22:5: tools.2.urll: unknown key `urll`; did you mean `url`?",
        "23:12: tools.2.query: `a` should be a text, a number or a boolean",
        "24:5: tools.3: needs either `function` or `module`",
        "27:7: loop: should be a mapping of keys to values",
    ]


def test_a_setting_that_is_gone_says_what_to_do_instead(refused):
    [problem] = [each for each in refused("upstream:\n  client: aiohttp\n") if "upstream" in each]
    assert problem.startswith("2:3: upstream.client: `client` is no setting any more")
    assert "HTTPS_PROXY" in problem
    assert problem.endswith("take this line out")


def test_the_setting_for_fences_is_gone_and_what_replaced_it_is_named(refused):
    [problem] = [each for each in refused("text_calls:\n  fenced: talk\n") if "text_calls" in each]
    assert problem.startswith(
        "1:1: text_calls: `text_calls` is no setting any more: `text_calls.fenced` was replaced by"
    )


def test_parts_that_do_not_fit_together_are_reported_where_they_stand(refused):
    text = """\
keys:
  - {name: alice, hash: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}
  - {name: alice, hash: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}
model_list:
  - {model_name: demo, litellm_params: {model: demo/demo}, fallbacks: [demo, dmo, "openai/x"]}
  - {model_name: "openai/*", litellm_params: {model: "openai/*"}}
  - {model_name: demo, litellm_params: {model: demo/demo}, tools: ["*"]}
tools:
  - {kind: http, name: a, description: d, url: "http://h"}
  - {kind: http, name: a, description: d, url: "http://h"}
"""
    assert refused(text) == [
        "3:12: keys.1.name: another key is called `alice`",
        "3:25: keys.1.hash: another entry has the same hash: two names for one key",
        "5:72: model_list.0.fallbacks.0: a model cannot be its own fallback",
        "5:78: model_list.0.fallbacks.1: no model of `model_list` is called that; did you mean `demo`?",
        "7:67: model_list.2.tools: the entries of `demo` share its load and must name the same tools",
        "10:24: tools.1.name: another tool is called `a`",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "model_list: is required"),
        ("model_list: []", "model_list: should name at least one model"),
        ("- a\n- b", "should be a mapping"),
        ("just words", "should be a mapping"),
        ("a: [1\nb: 2", "not readable as YAML"),
        ("a: 1\n---\nb: 2", "not readable as YAML"),
        ("a: \x07", "not readable as YAML"),
        ("? [a, b]\n: 1", "a key should be a text"),
        ("a: &x [*x]", "no end"),
        ("a: !!python/object:os.system {}", "not readable as YAML"),
        ("a: !!int words", "not a value of the type"),
        ("a: !!int ''", "not a value of the type"),
        ("a: !!float ''", "not a value of the type"),
        ("[" * 100_000, "deeper than 100"),
    ],
)
def test_a_file_that_is_no_config_gets_a_plain_error(refused, text, message):
    problems = refused(text)

    assert any(message in problem for problem in problems), problems


def test_aliases_of_aliases_end(refused):
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)]

    assert "more than 100000 values" in refused("\n".join(rows))[0]


def test_merge_keys_of_merge_keys_end(refused):
    rows = ["a0: &a0 {x: 1, y: 2}"]
    rows += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 30)]

    assert "more than 100000 values" in refused("\n".join(rows))[0]


def test_a_key_given_twice_is_refused_with_both_places(refused):
    text = "server:\n  port: 1\n  host: localhost\n  port: 2\n" + DEMO

    assert refused(text) == ["4:3: server.port: this key is given twice; the first is on line 2"]


def test_merge_keys_work_and_are_not_taken_for_repeated_ones(write):
    text = """
model_list:
  - &base
    model_name: demo
    litellm_params: &params {model: demo/demo, temperature: 1}
  - <<: *base
    model_name: other
    litellm_params: &mine {<<: *params, temperature: 0}
  - {model_name: third, litellm_params: *mine}
"""
    config = load(write(text), environ={}).config

    assert [entry.model_name for entry in config.model_list] == ["demo", "other", "third"]
    assert [entry.litellm_params.reveal()["temperature"] for entry in config.model_list] == [1, 0, 0]


def test_litellms_parameters_travel_as_they_are(write):
    text = """
model_list:
  - model_name: azure
    litellm_params:
      model: azure/gpt
      api_version: 2024-10-21
      api_base: https://x.example
      extra_headers: {on: yes, X-Team: a}
      stop: [a, b]
      some_new_parameter: {deep: {er: 1}}
    model_info: {supports_function_calling: true, max_tokens: 8192}
"""
    entry = load(write(text), environ={}).config.model_list[0]

    assert entry.litellm_params.reveal() == {
        "model": "azure/gpt",
        "api_version": "2024-10-21",
        "api_base": "https://x.example",
        "extra_headers": {"on": True, "X-Team": "a"},
        "stop": ["a", "b"],
        "some_new_parameter": {"deep": {"er": 1}},
    }
    assert entry.model_info == {"supports_function_calling": True, "max_tokens": 8192}


def test_calls_can_only_be_constrained_in_a_format_that_a_schema_describes(write, refused):
    text = "model_list: [{model_name: m, litellm_params: {model: openai/m}, tool_calling: %s, constrain_calls: on}]"
    for format in ("auto", "json", "llama3_json"):
        assert load(write(text % format), environ={}).config.model_list[0].constrain_calls
    for format in ("native", "hermes"):
        [mistake] = refused(text % format)
        assert "`constrain_calls` works only with `tool_calling: auto`" in mistake


def test_every_flavour_of_on_and_off_is_understood(write):
    for text, on in (("on", True), ("off", False), ("'on'", True), ("'off'", False), ("true", True), ("no", False)):
        config = load(write(f"loop: {{diagnostics: {text}}}\n" + DEMO), environ={}).config
        assert config.loop.diagnostics is on
    for text in ("off", "'off'"):
        assert load(write(f"auth: {text}\n" + DEMO), environ={}).config.auth.mode == "off"


SECRETIVE = """
server: {{host: "{0}", port: "{0}", public_url: "{0}", cors_origins: ["{0}"], drain_seconds: "{0}"}}
auth: "{0}"
version: "{0}"
keys: [{{name: "{0}", hash: "{0}"}}, "{0}"]
model_list:
  - {{model_name: m, litellm_params: "{0}", tools: "{0}", tool_calling: "{0}", lane: "{0}", timeout: "{0}"}}
  - {{model_name: n, litellm_params: {{model: x, api_key: ["{0}"]}}, fallbacks: ["{0}"], model_info: "{0}"}}
tools:
  - {{kind: "{0}"}}
  - {{kind: http, name: "{0}", url: "{0}", method: "{0}", headers: {{a: ["{0}"]}}, query: {{a: ["{0}"]}}, safety: "{0}"}}
  - {{kind: python, function: "{0}", retries: "{0}"}}
loop: {{diagnostics: "{0}", max_iterations: "{0}"}}
logging: {{level: "{0}", content: "{0}"}}
"""


@pytest.mark.parametrize("reference", ["${SECRET}", "os.environ/SECRET", "file:./secret"])
def test_a_secret_in_the_wrong_place_never_shows_in_the_error(refused, write, reference):
    write("planted-secret-1234", "secret")

    problems = refused(SECRETIVE.format(reference), {"SECRET": "planted-secret-1234"})

    assert len(problems) > 20
    assert "planted" not in "\n".join(problems)


def test_a_key_written_where_its_hash_belongs_is_not_repeated(refused):
    [problem] = refused("keys: [{name: a, hash: cg-the-key-itself}]\n" + DEMO)

    assert "cg-the-key" not in problem
    assert "the key itself does not belong here" in problem


def test_secrets_show_in_no_repr_and_are_known_to_be_masked(write):
    write("from-a-file\n", "secret")
    text = """
model_list:
  - model_name: m
    litellm_params:
      model: a/b
      api_key: ${PROVIDER}
      aws_secret_access_key: literal-secret
      extra_headers: {Authorization: Bearer in-a-header}
      vertex_credentials: file:./secret
      api_base: https://${HOST}/v1
tools:
  - kind: http
    name: a
    description: d
    url: https://h/${PATH_TOKEN}
    headers: {X-Team: team-value, X-Api-Key: header-key}
    query: {q: "${QUERY_KEY}"}
    body: {pass: "${BODY_PASSWORD}"}
"""
    environ = {
        "PROVIDER": "provider-key",
        "HOST": "host.example",
        "PATH_TOKEN": "path-token",
        "QUERY_KEY": "query-key",
        "BODY_PASSWORD": "body-password",
    }
    loaded = load(write(text), environ=environ)

    secrets = {"provider-key", "literal-secret", "in-a-header", "from-a-file", "header-key", "path-token", "query-key",
               "body-password"}  # fmt: skip
    assert secrets <= loaded.secrets
    assert "host.example" in loaded.secrets, "nobody can know what a variable holds"
    assert "team-value" not in loaded.secrets
    assert [secret for secret in secrets if secret in repr(loaded) + str(loaded.config)] == []
    assert loaded.config.model_list[0].litellm_params.reveal()["api_key"] == "provider-key"
    assert loaded.config.model_list[0].litellm_params.reveal()["vertex_credentials"] == "from-a-file"


def test_an_unset_variable_is_reported_with_its_place_and_name(refused):
    text = """\
model_list:
  - model_name: m
    litellm_params:
      model: a/b
      api_key: os.environ/NOT_THERE
      api_base: https://${NOR_THERE}/v1
"""
    assert refused(text, {"NOR_THERE": ""}) == [
        "5:16: model_list.0.litellm_params.api_key: the environment variable NOT_THERE is not set: `export NOT_THERE=...` first",
        "6:17: model_list.0.litellm_params.api_base: the environment variable NOR_THERE is empty: `export NOR_THERE=...` first",
    ]


def test_a_number_may_come_from_a_variable(write):
    config = load(write("server: {port: '${PORT:-9000}', drain_seconds: os.environ/D}\n" + DEMO), environ={"D": "1.5"})

    assert (config.config.server.port, config.config.server.drain_seconds) == (9000, 1.5)


WORDS = st.sampled_from(
    [
        *"{}[]:,-#&*!|>%@?\n '\"",
        "  ",
        "- ",
        ": ",
        "a",
        "model_list",
        "server",
        "port",
        "on",
        "1",
        "0x_",
        "${",
        "~",
        "<<",
    ]
)


@given(st.lists(WORDS, max_size=40).map("".join))
def test_whatever_the_file_holds_it_is_read_or_refused(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load(file, environ={})


def test_the_switch_for_durable_runs_is_gone_and_what_holds_now_is_said(refused):
    [problem] = [each for each in refused("runs:\n  durable: off\n") if "runs" in each]
    assert problem.startswith("2:3: runs.durable: `durable` is no setting any more")
    assert "`data_dir` or a `ledger.url`" in problem


def test_several_workers_need_something_to_share(refused):
    [alone] = [each for each in refused(DEMO + "server:\n  workers: 2\n") if "workers" in each]
    assert "several need a `data_dir`" in alone
    cluster = "server:\n  workers: 2\nledger:\n  url: postgresql://x@localhost/x\n"
    [half] = [each for each in refused(DEMO + cluster) if "workers" in each]
    assert "several need `store.redis_url` beside `ledger.url`" in half


ORDINARY = """
model_list:
  - model_name: m
    litellm_params:
      model: ${MODEL}
      api_key: ${WORD_AS_KEY}
      api_base: ${ADDRESS}
      aws_region_name: ${REGION}
      extra_headers: {X-Team: "${TEAM}", X-Short: "${SHORT}", X-Id: "${ID}"}
      extra_body: {safe: "${YES}", where: "${WHERE}"}
"""


def test_what_stands_in_any_text_is_no_secret_though_a_variable_holds_it(write):
    environ = {
        "MODEL": "openai/gpt-4o-mini",
        "WORD_AS_KEY": "swordfish",
        "ADDRESS": "http://localhost:8080/v1",
        "REGION": "eu-central-1",
        "TEAM": "platform",
        "SHORT": "ab1",
        "ID": "id-0123456789",
        "YES": "true",
        "WHERE": "localhost",
    }
    loaded = load(write(ORDINARY), environ=environ)
    assert loaded.secrets == {"swordfish", "ab1", "id-0123456789"}

    redactor = Redactor(loaded.secrets)
    answer = b"true: openai/gpt-4o-mini at http://localhost:8080/v1 in eu-central-1 is about fab1e, localhost, a platform, a swordfish"
    assert redactor.data(answer) == answer, "a word is ordinary in an answer, even where it is a key"
    assert redactor.data(b"it is id-0123456789") == b"it is *************"
    assert redactor.text("localhost refused platform's id-0123456789 for swordfish") == (
        "localhost refused platform's *** for ***"
    ), "no line of a log needs a key"


def test_a_section_that_the_file_does_not_have_is_what_its_validator_makes_of_nothing():
    assert issubclass(Config, Section)
    sections = [section for section in _derived_from(Section) if not _requires_something(section)]
    assert len(sections) > 30
    for section in sections:
        by_default = section.by_default()
        validated = section.model_validate({})
        assert by_default == validated, section.__name__
        assert by_default.model_fields_set == validated.model_fields_set
        assert by_default.model_dump() == validated.model_dump()


def test_no_section_of_the_schema_has_a_validator_of_its_own_before_a_config_is_read():
    """Half a millisecond of each start for each."""
    code = (
        "from callgate.config.schema import whole, values;"
        "print([kind.__name__ for kind in values.Section.__subclasses__() if kind.__pydantic_complete__])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_only_what_a_file_has_gets_a_validator():
    """Those of all settings took a tenth of a start."""
    code = f"""
from unittest import mock
from callgate.config.schema import values
from callgate.config.load import load
with mock.patch.object(values, "TypeAdapter", wraps=values.TypeAdapter) as made:
    load(text={DEMO!r}, environ={{}})
    load(text={DEMO!r} + "server: {{port: 1}}", environ={{}})
    load(text={DEMO!r} + "server: {{port: 2}}", environ={{}})
    print([call.args[0].__name__ for call in made.call_args_list])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "['Server']\n"


def _derived_from(kind: type[Section]) -> Iterator[type[Section]]:
    for derived in kind.__subclasses__():
        yield derived
        yield from _derived_from(derived)


def _requires_something(section: type[Section]) -> bool:
    return section is McpServer or any(field.is_required() for field in section.model_fields.values())
