"""What `tests/defences.toml` takes out is there to be taken out, and what has to fail then is a test."""

from tests.defences import ROOT, defences


def test_what_is_taken_out_is_there_and_so_is_its_test() -> None:
    wrong = []
    for row in defences():
        if (ROOT / row.file).read_text("utf-8").count(row.text) != 1 or row.text == row.instead:
            wrong.append(f"{row.against}: its text stands once in {row.file}, and something else takes its place")
        if f"def {row.test_name}(" not in row.test_file.read_text("utf-8"):
            wrong.append(f"{row.against}: there is no test {row.test}")
    assert not wrong, "\n".join(wrong)


def test_each_row_is_against_something_else() -> None:
    names = [row.against for row in defences()]
    assert len(set(names)) == len(names)
