"""NC202 on hand-written events: an exact line, a window of lines, no line at all; where the memory was handed out."""

from __future__ import annotations

import pytest

from noclobber.model.reports.finding import Finding
from noclobber.model.seen.events import Handed, Save, Write
from noclobber.model.source import Site
from noclobber.rules import explain

from .places import Program, clobber, helped, save, told, write

REUSED = Program("""
    x = torch.from_numpy(buf)
    y = w * x
    buf[:] = batch
    buf += 1
    loss.backward()
""")


def kept(program: Program, piece: str = "w * x") -> Save:
    return save("MulBackward0", "other", program.at(piece), name="x")


def foreign(site: Site | None, **facts: object) -> Write:
    return write("", site, via="foreign", version_after=0, **facts)  # type: ignore[arg-type]


def found(program: Program, change: Write) -> Finding:
    finding = explain(clobber(kept(program), change, read=program.at("loss.backward()"), raised=False))
    assert finding is not None
    assert (finding.code, finding.rule, finding.severity) == ("NC202", "foreign-write", "error")
    assert sum(one.primary for one in finding.labels) == 1
    assert sum(one.role != "inside" for one in finding.labels) <= 3
    return finding


def test_the_line_that_wrote_is_known() -> None:
    handed = Handed("from_numpy", REUSED.at("torch.from_numpy(buf)"))
    finding = found(REUSED, foreign(REUSED.at("buf[:]"), handed=handed))
    assert finding.message == "code outside of torch overwrites a tensor that backward still needs"
    assert told(finding, "save").text == "`x` is saved here: mul keeps its operand `other` (version 0)"
    assert told(finding, "create").text == "`from_numpy` shares the memory of an array here"
    assert told(finding, "write").text == "numpy overwrites it here"
    assert told(finding, "write").primary
    assert told(finding, "write").span.line == 3
    assert not [one for one in finding.labels if one.role == "read"]
    assert f"backward reads it at line 5 of {REUSED.path}, in MulBackward0" in finding.notes
    assert "PyTorch raises nothing" in finding.notes[0]
    assert "`torch.tensor(buf)` copies" in helped(finding)
    assert REUSED.mended(finding)[0].splitlines()[0] == "x = torch.from_numpy(buf).clone()"


def test_a_window_is_labelled_where_it_begins() -> None:
    handed = Handed("from_numpy", REUSED.at("torch.from_numpy(buf)"))
    finding = found(REUSED, foreign(REUSED.at("loss.backward()"), since=REUSED.at("buf[:]"), handed=handed))
    label = told(finding, "write")
    assert label.text == f"numpy overwrites it somewhere from here on, before line 5 of {REUSED.path}"
    assert label.span.line == 3
    assert label.primary


def test_a_window_without_an_end() -> None:
    finding = found(REUSED, foreign(None, since=REUSED.at("buf[:]")))
    assert told(finding, "write").text == "code outside of torch overwrites it somewhere from here on"
    assert told(finding, "read").span.line == 5


def test_a_window_of_one_line_is_that_line() -> None:
    finding = found(REUSED, foreign(REUSED.at("buf[:]"), since=REUSED.at("buf[:]")))
    assert told(finding, "write").text == "code outside of torch overwrites it here"


def test_no_line_is_known() -> None:
    finding = found(REUSED, foreign(None, handed=Handed("from_numpy", REUSED.at("torch.from_numpy(buf)"))))
    assert [(one.role, one.primary) for one in finding.labels] == [("save", True), ("create", False), ("read", False)]
    assert finding.notes[1] == "noclobber did not see the line of this write; it ran after the save and before backward"


def test_nothing_but_the_bytes_is_known() -> None:
    finding = found(REUSED, foreign(None))
    assert [one.role for one in finding.labels] == ["save", "read"]
    assert "`t.numpy().copy()`" in helped(finding)


OUT = Program("""
    a = x.detach().numpy()
    y = w * x
    a[0] = 1
    loss.backward()
""")


def test_a_tensor_written_through_its_array() -> None:
    handed = Handed("numpy", OUT.at("x.detach().numpy()"))
    finding = found(OUT, foreign(OUT.at("a[0]"), handed=handed))
    assert told(finding, "create").text == "`numpy` hands its memory out here"
    assert OUT.mended(finding)[0].splitlines()[0] == "a = x.detach().numpy().copy()"


def test_handed_out_and_written_on_one_line() -> None:
    program = Program("y = w * x\nx.detach().numpy().fill(0)\nloss.backward()\n")
    handed = Handed("numpy", program.at("x.detach().numpy()"))
    finding = found(program, foreign(program.at("x.detach().numpy().fill(0)"), handed=handed))
    assert [one.role for one in finding.labels] == ["save", "write", "read"]


@pytest.mark.parametrize("by", ["data_ptr", "untyped_storage"])
def test_an_address_given_to_a_kernel(by: str) -> None:
    finding = found(OUT, foreign(OUT.at("a[0]"), handed=Handed(by, OUT.at("x.detach().numpy()"))))
    assert told(finding, "create").text == f"`{by}` hands its memory out here"
    assert told(finding, "write").text == "code outside of torch overwrites it here"
    assert "after the last backward" in helped(finding)


def test_another_process() -> None:
    change = write("", None, via="process", version_after=0)
    shared = save("AddmmBackward0", "mat2", OUT.at("w * x"), name="fc.weight", kind="parameter")
    finding = explain(clobber(shared, change, read=OUT.at("loss.backward()"), raised=False))
    assert finding is not None
    assert finding.code == "NC202"
    assert finding.message == "another process overwrites a parameter that backward still needs"
    assert "each process counts its own writes, and none through other mappings of a file" in finding.notes[0]
    assert "`copy.deepcopy(shared)`" in helped(finding)
    assert "lock" in helped(finding)


def test_the_line_of_another_process() -> None:
    program = Program("def worker(w):\n    w.sub_(1)\ny = w * x\nloss.backward()\n")
    change = write("aten::sub_", program.at("w.sub_(1)"), via="process", version_after=0)
    assert told(found(program, change), "write").text == "another process overwrites it here"
