import pytest

from callgate.config.references import BadReference, References

ENVIRON = {"NAME": "value", "OTHER": "o", "EMPTY": "", "API_KEY": "secret-value", "HELD_FILE": "held"}


@pytest.fixture
def references(tmp_path):
    (tmp_path / "held").write_text("from a file\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"x" * 2_000_000)
    return References(ENVIRON, tmp_path)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("plain", "plain"),
        ("", ""),
        ("$NAME {NAME} $", "$NAME {NAME} $"),
        ("os.environ/NAME", "value"),
        ("see os.environ/NAME", "see os.environ/NAME"),
        ("${NAME}", "value"),
        ("${env:NAME}", "value"),
        ("a ${NAME} b ${OTHER}", "a value b o"),
        ("${MISSING:-other}", "other"),
        ("${MISSING:-}", ""),
        ("${EMPTY:-other}", "other"),
        ("${NAME:-other}", "value"),
        ("${MISSING:-http://h:1/}", "http://h:1/"),
        ("$${NAME}", "${NAME}"),
        ("{city} ${NAME}", "{city} value"),
        ("${HELD}", "from a file"),
        ("os.environ/HELD", "from a file"),
        ("file:./held", "from a file"),
        ("file:///held", "file:///held"),
        ("file:held", "file:held"),
    ],
)
def test_references_are_filled_in(references, text, meaning):
    assert references.resolve(text).text == meaning


def test_a_file_may_be_named_by_its_whole_path(references, tmp_path):
    assert references.resolve(f"file:{tmp_path}/held").text == "from a file"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("os.environ/MISSING", "MISSING is not set"),
        ("os.environ/EMPTY", "EMPTY is empty"),
        ("os.environ/", "followed by the name"),
        ("os.environ/A B", "followed by the name"),
        ("${MISSING}", "MISSING is not set"),
        ("${}", "takes a variable's name"),
        ("${NAME-other}", "takes a variable's name"),
        ("${input:key}", "asks a person at an editor"),
        ("${NAME", "never closed"),
        ("${a${NAME}}", "never closed"),
        ("file:./nowhere", "cannot read the file ./nowhere"),
        ("file:./", "cannot read the file ./"),
        ("file:./empty", "is empty"),
        ("file:./binary", "not UTF-8"),
        ("file:./large", "more than"),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(references, text, message):
    with pytest.raises(BadReference, match=message):
        references.resolve(text)


def test_a_default_is_not_expanded_again(references):
    assert references.resolve("${NAME}").text == "value"
    assert References({"A": "${B}"}, references._folder).resolve("${A}").text == "${B}"


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("${NAME}", ("value",)),
        ("${UNSET:-a default}", ()),
        ("${SOME_TOKEN:-a default}", ("a default",)),
        ("plain", ()),
        ("Bearer ${API_KEY}", ("secret-value",)),
        ("os.environ/API_KEY", ("secret-value",)),
        ("file:./held", ("from a file",)),
        ("${HELD}", ("from a file",)),
    ],
)
def test_whatever_comes_from_a_variable_or_a_file_is_a_secret(references, text, secrets):
    resolved = references.resolve(text)

    assert resolved.secrets == secrets
    assert resolved.referred == (text != "plain")
