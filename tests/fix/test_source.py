"""Edits are applied exactly, and everything else of a file stays as it is."""

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noclobber.fix.edits import source as source_module
from noclobber.fix.edits.patch import Patch, line_before
from noclobber.fix.edits.source import Misfit, Source, diff, replace_file
from noclobber.fix.proof.trials.source_overlay import Served
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Edit, Finding
from noclobber.model.source import Span, source_line
from tests.fix.breaking import are_apart, taken_by_the_letter


def edit(path: Path, line: int, column: int, end_line: int, end_column: int, text: str) -> Edit:
    return Edit(Span(str(path), line, column, end_line, end_column), text)


def edited(path: Path, data: bytes, *edits: tuple[int, int, int, int, str]) -> bytes:
    path.write_bytes(data)
    return Source.read(str(path)).edited(edit(path, *one) for one in edits).data


def test_an_edit_replaces_its_span(tmp_path):
    assert edited(tmp_path / "a.py", b"x += 1\ny = 2\n", (1, 1, 1, 7, "x = x + 1")) == b"x = x + 1\ny = 2\n"


def test_several_edits_are_given_in_the_lines_of_the_file_as_it_was(tmp_path):
    after = edited(tmp_path / "a.py", b"a\nb\nc\n", (3, 1, 3, 2, "C"), (1, 1, 1, 1, "new\n"), (2, 1, 3, 1, ""))
    assert after == b"new\na\nC\n"


@given(data=st.data(), count=st.integers(3, 9))
def test_undoing_one_of_two_changes_leaves_the_other(tmp_path_factory, data, count):
    path = tmp_path_factory.mktemp("program") / "a.py"
    path.write_text("".join(f"a{at} = 0\n" for at in range(count)))
    one, other = data.draw(st.lists(st.integers(1, count), min_size=2, max_size=2, unique=True))
    added = data.draw(st.integers(int(one == 1), 3))
    new = edit(path, one, 1, one + 1, 1, "".join(f"b{at} = 1\n" for at in range(added)))
    first = Patch().edited([new])
    moved = other + (added - 1) * (other > one)
    both = first.edited([edit(path, moved, 1, moved, 1, "c = 1; ")])
    undone = both.edited(both.undoing(Patch(), first))
    assert undone.read(str(path)) == Patch().edited([edit(path, other, 1, other, 1, "c = 1; ")]).read(str(path))
    with pytest.raises(Misfit, match="same lines"):
        both.undoing(first, first.edited([edit(path, moved, 1, moved, 1, "d = 1; ")]))


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r"])
def test_line_ends_stay_and_new_lines_get_those_of_their_neighbours(tmp_path, end):
    data = f"a{end}b{end}c".encode()
    assert edited(tmp_path / "a.py", data, (2, 1, 2, 2, "if b:\n    c")) == f"a{end}if b:{end}    c{end}c".encode()


def test_mixed_line_ends_are_not_made_one(tmp_path):
    assert edited(tmp_path / "a.py", b"a\r\nb\nc\r\n", (2, 1, 2, 2, "d\ne")) == b"a\r\nd\ne\nc\r\n"


def test_columns_count_characters(tmp_path):
    data = 'å = "日本"; x += 1\n'.encode()
    assert edited(tmp_path / "a.py", data, (1, 11, 1, 17, "x = x + 1")) == 'å = "日本"; x = x + 1\n'.encode()


def test_encoding_and_byte_order_mark_stay(tmp_path):
    latin = "# coding: latin-1\né = 1\n".encode("latin-1")
    assert edited(tmp_path / "a.py", latin, (2, 5, 2, 6, "2")) == "# coding: latin-1\né = 2\n".encode("latin-1")
    marked = b"\xef\xbb\xbfx = 1\n"
    assert edited(tmp_path / "b.py", marked, (1, 5, 1, 6, "2")) == b"\xef\xbb\xbfx = 2\n"


def test_what_an_encoding_cannot_hold_is_no_patch(tmp_path):
    with pytest.raises(Misfit, match="iso-8859-1"):
        edited(tmp_path / "a.py", b"# coding: latin-1\nx = 1\n", (2, 5, 2, 6, '"日"'))


def test_a_line_can_be_added_below_the_last_one(tmp_path):
    assert edited(tmp_path / "a.py", b"a\n", (2, 1, 2, 1, "b\n")) == b"a\nb\n"
    assert edited(tmp_path / "b.py", b"a", (2, 1, 2, 1, "b\n")) == b"a\nb\n"


@pytest.mark.parametrize("span", [(3, 1, 3, 1), (1, 3, 1, 3), (0, 1, 1, 1), (1, 2, 1, 1)])
def test_an_edit_outside_the_file_does_not_fit(tmp_path, span):
    with pytest.raises(Misfit):
        edited(tmp_path / "a.py", b"a\n", (*span, "x"))


def test_overlapping_edits_do_not_fit(tmp_path):
    with pytest.raises(Misfit, match="overlap"):
        edited(tmp_path / "a.py", b"abcd\n", (1, 1, 1, 3, "x"), (1, 2, 1, 4, "y"))


def test_edits_that_break_the_syntax_or_change_nothing_are_no_patch(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    with pytest.raises(Misfit, match="not valid Python"):
        Patch().edited([edit(path, 1, 1, 1, 2, "if")])
    with pytest.raises(Misfit, match="nothing"):
        Patch().edited([edit(path, 1, 1, 1, 2, "x")])


def test_a_patch_is_made_on_top_of_another(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x = 1\ny = 1\n")
    patch = Patch().edited([edit(path, 1, 1, 1, 1, "# first\n")])
    patch = patch.edited([edit(path, 3, 5, 3, 6, "2")])
    assert patch.read(str(path)) == "# first\nx = 1\ny = 2\n"
    assert path.read_text() == "x = 1\ny = 1\n"


TEXTS = st.lists(st.sampled_from(["", "x = 1", "    é = 2", "\ty", "# 日本"]), max_size=8)
ENDS = st.sampled_from(["\n", "\r\n"])


@given(old=TEXTS, new=TEXTS, end=ENDS, closed=st.tuples(st.booleans(), st.booleans()))
def test_git_applies_the_diff(tmp_path_factory, old, new, end, closed):
    folder = tmp_path_factory.mktemp("repository")
    before, after = (
        end.join(lines) + (end if lines and ends else "") for lines, ends in zip((old, new), closed, strict=True)
    )
    path = folder / "a.py"
    path.write_bytes(before.encode())
    text = diff(Source("a.py", before, "utf-8"), Source("a.py", after, "utf-8"), "a.py")
    if text and before and after:  # git has other words for files that come and go
        done = subprocess.run(["git", "apply", "-"], input=text.encode(), cwd=folder, capture_output=True)
        assert done.returncode == 0, done.stderr
        assert path.read_bytes() == after.encode()
    elif not text:
        assert before == after


def test_a_file_is_replaced_whole_with_its_mode(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("old\n")
    path.chmod(0o751)
    replace_file(Source(str(path), "new\n", "utf-8"))
    assert path.read_text() == "new\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    assert os.listdir(tmp_path) == ["a.py"]


def test_a_file_stays_as_it_is_where_it_cannot_be_replaced(tmp_path, monkeypatch):
    path = tmp_path / "a.py"
    path.write_text("old\n")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(source_module.os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        replace_file(Source(str(path), "new\n", "utf-8"))
    assert path.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["a.py"]


def test_a_text_in_place_of_a_file_has_the_lines_of_python(tmp_path):
    path = str(tmp_path / "train.py")
    assert Served({os.path.realpath(path): b"a = 1  # \x0c\r\nb = 2\r\n"}).read(path) is not None
    assert source_line(path, 2) == "b = 2"


def test_which_line_a_line_was_before():
    old, new = "a\nb\nc\n", "a\nB1\nB2\nc\n"
    assert [line_before(old, new, line) for line in (1, 2, 3, 4)] == [1, None, None, 3]


PIECES = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from(["", "x", "é\n", "a\nb", "a\r\n"])), max_size=4
)


@given(lines=TEXTS, end=st.sampled_from(["\n", "\r\n", "\r"]), closed=st.booleans(), pieces=PIECES)
def test_exact_edits_do_the_same_by_the_letter(lines, end, closed, pieces):
    source = Source("a.py", end.join(lines) + (end if closed else ""), "utf-8")
    rows = re.split("\r\n|\r|\n", source.text)
    places = [(number, column) for number, row in enumerate(rows, 1) for column in range(1, len(row) + 2)]
    places += [(len(rows) + 1, 1)] * bool(rows[-1])  # below a last line that has no end
    edits = []
    for start, stop, text in pieces:
        begin, finish = sorted((start % len(places), stop % len(places)))
        edits.append(edit(Path("a.py"), *places[begin], *places[finish], text))
    try:
        after = source.edited(edits).text
    except Misfit:
        return
    exact = source.exact(edits)
    assert are_apart(exact)
    assert taken_by_the_letter(source.text, exact) == after
    assert end != "\n" or source.edited(exact).text == after


def test_a_file_that_cannot_be_decoded_is_no_source_of_a_cure(tmp_path):
    path = tmp_path / "beside.py"
    path.write_bytes(b"def f(y):  # \xe9\n    y.add_(1)\n")
    assert Scene(Finding("NC101", "stale-save", "error", "", ()), Patch().read).file(str(path)) is None
