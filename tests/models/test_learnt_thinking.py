"""What was learnt of models' thinking outlives the process where there is a folder for it."""

import structlog

from callgate.models.learnt_thinking import MOST, ThinkingNotes
from callgate.text_calls.thinking import ANSWERS_UNTIL_NONE, ANSWERS_UNTIL_UNLEARNT, ThinkingMemory

DEPLOYMENT = ("m", "openai/somebodys-model", "http://127.0.0.1:1/v1")


def test_a_model_that_opens_its_thinking_is_known_after_a_restart(tmp_path):
    file = tmp_path / "data" / "thinking.json"
    ThinkingMemory("somebodys-model", learnt=ThinkingNotes(file).of(DEPLOYMENT)).note_answer(had_lone_end=True)
    assert ThinkingMemory("somebodys-model", learnt=ThinkingNotes(file).of(DEPLOYMENT)).mode(streams=True) == "unknown"
    other = ThinkingMemory("somebodys-model", learnt=ThinkingNotes(file).of(("other",)))
    assert other.mode(streams=True) == "by_first_sentence"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [*file.parent.iterdir()] == [file]


def test_so_is_one_that_does_not(tmp_path):
    file = tmp_path / "thinking.json"
    memory = ThinkingMemory("somebodys-model", learnt=ThinkingNotes(file).of(DEPLOYMENT))
    for _ in range(ANSWERS_UNTIL_NONE):
        assert memory.mode(streams=True) == "by_first_sentence"
        memory.note_answer(had_lone_end=False)
    assert memory.mode(streams=True) == "none"
    again = ThinkingMemory("somebodys-model", learnt=ThinkingNotes(file).of(DEPLOYMENT))
    assert again.mode(streams=True) == "none"
    again.note_answer(had_lone_end=True)
    assert again.mode(streams=True) == "unknown"
    assert ThinkingNotes(file).of(DEPLOYMENT).opens() is True


def test_a_model_that_stops_to_open_its_thinking_is_doubted(tmp_path):
    file = tmp_path / "thinking.json"
    memory = ThinkingMemory("somebodys-model", learnt=ThinkingNotes(file).of(DEPLOYMENT))
    memory.note_answer(had_lone_end=True)
    for _ in range(ANSWERS_UNTIL_UNLEARNT):
        assert memory.mode(streams=True) == "unknown"
        memory.note_answer(had_lone_end=False)
    assert memory.mode(streams=True) == "by_first_sentence"
    assert ThinkingNotes(file).of(DEPLOYMENT).opens() is None


def test_what_the_entry_says_is_not_learnt_otherwise(tmp_path):
    notes = ThinkingNotes(tmp_path / "thinking.json")
    memory = ThinkingMemory("somebodys-model", "none", notes.of(DEPLOYMENT))
    memory.note_answer(had_lone_end=True)
    assert memory.mode(streams=True) == "none"
    assert notes.of(DEPLOYMENT).opens() is None


def test_workers_beside_one_another_keep_what_the_others_learnt(tmp_path):
    file = tmp_path / "thinking.json"
    one = ThinkingNotes(file)
    two = ThinkingNotes(file)
    one.of(("a",)).learn(opens=True)
    two.of(("b",)).learn(opens=False)
    later = ThinkingNotes(file)
    assert (later.of(("a",)).opens(), later.of(("b",)).opens()) == (True, False)


def test_a_damaged_file_is_told_and_made_anew(tmp_path):
    file = tmp_path / "thinking.json"
    file.write_bytes(b'{"a": 3}')
    with structlog.testing.capture_logs() as lines:
        notes = ThinkingNotes(file)
        notes.of(DEPLOYMENT).learn(opens=True)
    assert [line["event"] for line in lines] == ["learnt_thinking_unusable"]
    assert ThinkingNotes(file).of(DEPLOYMENT).opens() is True


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path):
    (tmp_path / "data").write_text("a file")
    with structlog.testing.capture_logs() as lines:
        notes = ThinkingNotes(tmp_path / "data" / "thinking.json")
        notes.of(("a",)).learn(opens=True)
        notes.of(("b",)).learn(opens=True)
    assert [line["event"] for line in lines] == ["learnt_thinking_unusable"]
    assert notes.of(("a",)).opens() is True
    assert [*tmp_path.iterdir()] == [tmp_path / "data"]


def test_no_more_than_so_many_deployments_are_remembered():
    notes = ThinkingNotes()
    for number in range(MOST + 5):
        notes.of((str(number),)).learn(opens=True)
    assert notes.of(("4",)).opens() is None
    assert notes.of(("5",)).opens() is True
