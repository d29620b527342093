"""What is sealed can be opened by who has the secret, for the same purpose and owner, and by nobody else."""

import stat
from pathlib import Path

import pytest

from callgate.config.load import SEALING_VARIABLE
from callgate.state.sealing import FILE, MARK, BadSecret, NotSealedHere, Sealer, check_secret, sealer_of

OLD, NEW = "o" * 32, "n" * 32


def of(*given: str) -> Sealer:
    return Sealer(given, "environment")


def test_what_was_sealed_is_opened_and_nothing_of_it_can_be_read():
    sealed = of(NEW).seal("reasoning", "alice", b"api.example gpt-x")
    assert of(NEW).open("reasoning", "alice", sealed) == b"api.example gpt-x"
    assert b"gpt" not in sealed.encode()
    assert of(NEW).seal("reasoning", "alice", b"api.example gpt-x") != sealed


@pytest.mark.parametrize(
    ("purpose", "owner"), [("reasoning", "bob"), ("other", "alice")], ids=["another owner", "another purpose"]
)
def test_it_is_bound_to_its_purpose_and_owner(purpose: str, owner: str):
    sealed = of(NEW).seal("reasoning", "alice", b"thought")
    with pytest.raises(NotSealedHere, match="forged, damaged or sealed for another key"):
        of(NEW).open(purpose, owner, sealed)


def test_every_changed_character_is_noticed():
    sealed = of(NEW).seal("reasoning", "alice", b"thought")
    for place in range(len(MARK), len(sealed.rstrip("=")) - 1):  # the last one has bits that mean nothing
        other = "A" if sealed[place] != "A" else "B"
        changed = f"{sealed[:place]}{other}{sealed[place + 1 :]}"
        with pytest.raises(NotSealedHere):
            of(NEW).open("reasoning", "alice", changed)


@pytest.mark.parametrize("cut", range(40))
def test_every_beginning_of_it_is_refused_and_so_is_anything_else(cut: int):
    sealed = of(NEW).seal("reasoning", "alice", b"thought")
    for text in (sealed[:cut], sealed[:cut] + "é", sealed[:cut] + " !", "cg1." + sealed[4:cut], "gAAAA" + "A" * cut):
        with pytest.raises(NotSealedHere):
            of(NEW).open("reasoning", "alice", text)


def test_an_older_secret_opens_and_the_first_one_seals():
    before = of(OLD).seal("reasoning", "alice", b"before")
    rotated = of(NEW, OLD)
    assert rotated.open("reasoning", "alice", before) == b"before"
    after = rotated.seal("reasoning", "alice", b"after")
    assert of(NEW).open("reasoning", "alice", after) == b"after"
    with pytest.raises(NotSealedHere, match="not known here"):
        of(OLD).open("reasoning", "alice", after)


# Where the secret comes from --------------------------------------------------------------------------------------------


def test_the_variable_comes_before_the_file_and_is_split_at_commas(tmp_path: Path):
    sealer = sealer_of(tmp_path, {SEALING_VARIABLE: f"{NEW}, {OLD}"})
    assert sealer.source == "environment"
    assert sealer.open("p", "o", of(OLD).seal("p", "o", b"x")) == b"x"
    assert of(NEW).open("p", "o", sealer.seal("p", "o", b"x")) == b"x"
    assert not (tmp_path / FILE).exists()


def test_the_file_is_made_once_and_is_its_owners_alone(tmp_path: Path):
    folder = tmp_path / "data"
    first, second = sealer_of(folder, {}), sealer_of(folder, {})
    assert (first.source, second.source) == ("data_dir", "data_dir")
    assert second.open("p", "o", first.seal("p", "o", b"x")) == b"x"
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    assert [file.name for file in folder.iterdir()] == [FILE]


def test_a_line_put_before_the_one_in_the_file_rotates_it(tmp_path: Path):
    before = sealer_of(tmp_path, {}).seal("p", "o", b"x")
    path = tmp_path / FILE
    path.write_text(f"{NEW}\n{path.read_text()}")
    assert sealer_of(tmp_path, {}).open("p", "o", before) == b"x"
    assert of(NEW).open("p", "o", sealer_of(tmp_path, {}).seal("p", "o", b"y")) == b"y"


def test_without_both_it_is_one_of_the_process():
    assert sealer_of(None, {}).source == "process"
    assert sealer_of(None, {}).open("p", "o", sealer_of(None, {}).seal("p", "o", b"x")) == b"x"


@pytest.mark.parametrize("held", [b"", b"\n \n", b"short", b"\xff" * 40], ids=["empty", "blank", "short", "no text"])
def test_a_file_that_holds_no_secret_is_an_error_and_stays_as_it_is(tmp_path: Path, held: bytes):
    (tmp_path / FILE).write_bytes(held)
    with pytest.raises(BadSecret, match=str(tmp_path / FILE)):
        sealer_of(tmp_path, {})
    with pytest.raises(BadSecret, match=str(tmp_path / FILE)):
        check_secret(tmp_path, {})
    assert (tmp_path / FILE).read_bytes() == held


def test_a_short_variable_is_an_error_that_does_not_repeat_it(tmp_path: Path):
    for use in (sealer_of, check_secret):
        with pytest.raises(BadSecret, match=f"{SEALING_VARIABLE} has fewer than 32 characters") as refused:
            use(tmp_path, {SEALING_VARIABLE: "hunter2"})
        assert "hunter2" not in str(refused.value)


def test_checking_makes_no_file(tmp_path: Path):
    check_secret(tmp_path, {})
    assert list(tmp_path.iterdir()) == []
