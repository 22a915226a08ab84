"""What a journal has, wherever its last line was cut, and whose it is."""

from pathlib import Path

import pytest

from engine.tools.quantize.journal import Entry, Journal, is_left_by_a_finished_one

FIRST, SECOND, THIRD = Entry("a", "x", 0.026), Entry("a", "y", None), Entry("b", "z", 1 / 3)


def entries(folder: Path, key: str = "key") -> list[Entry]:
    with Journal(folder, key) as journal:
        return journal.entries


def test_it_goes_on_after_each_of_several_ends(tmp_path: Path) -> None:
    folder = tmp_path / "partial"
    for entry in (FIRST, SECOND, THIRD):
        with Journal(folder, "key") as journal:
            assert journal.is_resumed == (entry is not FIRST)
            journal.add([entry])
    assert entries(folder) == [FIRST, SECOND, THIRD]


def test_a_line_that_was_cut_short_counts_for_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "partial"
    with Journal(folder, "key") as journal:
        begun = (folder / "journal").stat().st_size
        journal.add([FIRST])
        one = (folder / "journal").stat().st_size
        journal.add([SECOND])
    whole = (folder / "journal").read_bytes()
    for size in range(len(whole) + 1):
        (folder / "journal").write_bytes(whole[:size])
        expected = [FIRST, SECOND] if size == len(whole) else [FIRST] if size >= one else []
        assert entries(folder) == expected
        with Journal(folder, "key") as journal:
            journal.add([THIRD])
        assert entries(folder) == [*expected, THIRD]
    assert begun < one


def test_another_key_takes_what_was_made_away(tmp_path: Path) -> None:
    folder = tmp_path / "partial"
    with Journal(folder, "key") as journal:
        journal.model.mkdir()
        (journal.model / "a").touch()
        journal.add([FIRST])
    assert entries(folder, "another") == []
    assert [path.name for path in folder.iterdir()] == ["journal"]
    assert entries(folder) == []


@pytest.mark.parametrize("is_there", [True, False])
def test_it_ends_with_a_name(is_there: bool, tmp_path: Path) -> None:
    folder, out = tmp_path / "partial", tmp_path / "out"
    if is_there:
        out.mkdir()
    with Journal(folder, "key") as journal:
        journal.model.mkdir()
        assert not is_left_by_a_finished_one(folder)
        journal.finish(out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
