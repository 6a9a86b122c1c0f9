"""NC101 on hand-written events: headline, labels, notes, and the help that fits the cause."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from noclobber.model.reports.finding import Finding
from noclobber.model.reports.report import Report
from noclobber.model.source import Site
from noclobber.rules import explain

from .places import Program, clobber, helped, save, told, write


def found(program: Program, saved: str, written: str, op: str = "aten::add_", **facts: object) -> Finding:
    """The finding for a sigmoid's result saved at one piece of text and written at another."""
    where = {key: facts.pop(key) for key in ("kind", "name") if key in facts}
    node: tuple[str, str] = facts.pop("node", ("SigmoidBackward0", "result"))  # type: ignore[assignment]
    event = clobber(
        save(*node, program.at(saved), **where),  # type: ignore[arg-type]
        write(op, program.at(written), **facts),  # type: ignore[arg-type]
        read=program.at("loss.backward()"),
    )
    finding = explain(event)
    assert finding is not None
    return finding


def test_the_finding_of_the_design_page() -> None:
    program = Program("""
        h = torch.sigmoid(w(x))
        h += x.detach()
        loss.backward()
    """)
    finding = found(program, "torch.sigmoid(w(x))", "h += x.detach()")
    assert (finding.code, finding.rule, finding.severity) == ("NC101", "stale-save", "error")
    assert finding.message == "in-place write to a tensor that backward still needs"
    assert [(one.role, one.span.line, one.primary) for one in finding.labels] == [
        ("save", 1, False),
        ("write", 2, True),
        ("read", 3, False),
    ]
    assert [one.text for one in finding.labels] == [
        "`h` is saved here: sigmoid keeps its result (version 0)",
        "`add_` overwrites it here (version 0 -> 1)",
        "backward reads it here, in SigmoidBackward0",
    ]
    assert finding.notes == (
        "d sigmoid(x)/dx = y (1 - y), so autograd keeps y; the input of sigmoid is not kept and may be overwritten",
    )
    assert helped(finding) == "write out of place"
    assert not finding.suggestions
    assert program.mended(finding)[0].splitlines()[1] == "h = h + x.detach()"
    about = json.loads(Report((finding,)).to_json())["findings"][0]
    assert about["tensor"] == {
        "name": "h", "kind": "tensor", "shape": [4], "dtype": "float32", "device": "cpu", "bytes": 16,
    }  # fmt: skip
    kept = {"field": "result", "fields": ["result"], "version": 0, "unchecked": ""}
    assert about["save"] == {"node": "SigmoidBackward0", **kept}
    assert about["writes"][0]["op"] == "aten::add_"
    assert about["writes"][0]["line"] == 2


def test_a_write_above_the_save_ran_in_a_later_iteration() -> None:
    program = Program("""
        for x in data:
            h.mul_(2)
            y = torch.sigmoid(h)
        loss.backward()
    """)
    finding = found(program, "torch.sigmoid(h)", "h.mul_(2)", "aten::mul_")
    assert told(finding, "write").text == "`mul_` overwrites it here, in a later iteration (version 0 -> 1)"


def test_a_write_above_the_save_without_a_loop_ran_in_a_later_call() -> None:
    program = Program("""
        def step(h):
            h.mul_(2)
            return torch.sigmoid(h)
        loss.backward()
    """)
    finding = found(program, "torch.sigmoid(h)", "h.mul_(2)", "aten::mul_")
    assert told(finding, "write").text == "`mul_` overwrites it here, in a later call (version 0 -> 1)"


def test_an_unseen_writer_still_gives_a_finding() -> None:
    program = Program("y = torch.sigmoid(h)\nloss.backward()\n")
    finding = explain(
        clobber(save("SigmoidBackward0", "result", program.at("torch.sigmoid(h)")), read=program.at("loss.backward()"))
    )
    assert finding is not None
    assert finding.code == "NC101"
    assert finding.message == "a tensor that backward still needs was written in place"
    assert told(finding, "save").primary
    assert any("noclobber did not see this write" in note for note in finding.notes)


def test_a_second_writer_is_a_label_when_there_is_room_and_a_note_when_not() -> None:
    program = Program("y = torch.sigmoid(h)\ny += 1\ny *= 2\nloss.backward()\n")
    saved = save("SigmoidBackward0", "result", program.at("torch.sigmoid(h)"))
    writes = write("aten::add_", program.at("y += 1")), write("aten::mul_", program.at("y *= 2"), order=6)
    crowded = explain(clobber(saved, *writes, read=program.at("loss.backward()")))
    roomy = explain(clobber(saved, *writes))
    assert crowded is not None
    assert roomy is not None
    assert [one.span.line for one in crowded.labels] == [1, 2, 4]
    assert f"1 more write followed, at line 3 of {program.path}" in crowded.notes
    assert [(one.span.line, one.primary) for one in roomy.labels] == [(1, False), (2, True), (3, False)]


def test_the_same_line_in_a_loop_is_counted() -> None:
    program = Program("y = torch.sigmoid(h)\nfor x in data:\n    y += x\nloss.backward()\n")
    saved = save("SigmoidBackward0", "result", program.at("torch.sigmoid(h)"))
    finding = explain(clobber(saved, *(write("aten::add_", program.at("y += x"), order=5 + n) for n in range(3))))
    assert finding is not None
    assert "3 writes at this line came before backward read it" in finding.notes


def test_a_library_line_is_shown_inside() -> None:
    library = Program("act.add_(1)\n", "/env/lib/python3.11/site-packages/timm/layers.py")
    program = Program("y = torch.sigmoid(h)\nblock(y)\nloss.backward()\n")
    site = program.at("block(y)", inside=Site(library.code, library.at("act.add_(1)").lasti))
    finding = explain(
        clobber(save("SigmoidBackward0", "result", program.at("torch.sigmoid(h)")), write("aten::add_", site))
    )
    assert finding is not None
    inside = told(finding, "inside")
    assert inside.text == "`add_` runs here, inside `timm`"
    assert inside.span.path.endswith("timm/layers.py")
    assert told(finding, "write").span.line == 2


def test_the_message_that_names_another_node_is_explained() -> None:
    program = Program("y = h**2\nh.sigmoid_()\nloss.backward()\n")
    finding = found(program, "h**2", "h.sigmoid_()", "aten::sigmoid_", node=("PowBackward0", "self"))
    assert finding.notes[1:] == (
        "PyTorch's message names SigmoidBackward0: that is the write, and PowBackward0 needs the tensor",
    )


def test_a_message_that_names_a_write_to_a_view_is_explained_whatever_wrote() -> None:
    program = Program("y = h**2\nh[0].mul_(2)\nloss.backward()\n")
    event = clobber(save("PowBackward0", "self", program.at("h**2")), write("aten::mul_", program.at("h[0].mul_(2)")))
    message = (event.message or "").replace("SigmoidBackward0", "torch::autograd::CopySlices")
    finding = explain(replace(event, message=message))
    assert finding is not None
    assert "PyTorch's message names torch::autograd::CopySlices: that is the write, and" in finding.notes[1]


def test_the_message_that_names_an_innocent_producer_is_passed_over() -> None:
    program = Program("y = h**2\nh.add_(1)\nloss.backward()\n")
    finding = found(program, "h**2", "h.add_(1)", node=("PowBackward0", "self"))
    assert len(finding.notes) == 1


def test_what_is_read_after_an_in_place_module_changes_with_it() -> None:
    program = Program("y = h**2\nz = self.act(h)\nloss = y + z + h\nloss.backward()\n")
    finding = found(program, "h**2", "self.act(h)", op="aten::relu_")
    said = "build this module with `inplace=False`; what reads `h` below then gets its old value"
    assert said in helped(finding)


CAUSES = [
    ("h.relu_()", "aten::relu_", {}, "let `relu` write a new tensor", "h = h.relu()"),
    ("F.relu(h, inplace=True)", "aten::relu_", {}, "let `relu` write a new tensor", "h = F.relu(h)"),
    ("self.act(h)", "aten::relu_", {}, "build this module with `inplace=False`", None),
    ("self.drop(h)", "aten::dropout_", {}, "build this module with `inplace=False`", None),
    ("self.block(h)", "aten::add_", {}, "let the module or function called here write out of place", None),
    ("h[0]", "aten::copy_", {}, "write into a clone: `h = h.clone()`", None),
    ("h[mask]", "aten::index_put_", {}, "`torch.where(mask, new, h)`", None),
    ("h[h < 0]", "aten::index_put_", {}, "`torch.where(h < 0, new, h)`", None),
    (
        "h.copy_(new)",
        "aten::copy_",
        {},
        "bind the new value to the name instead of writing it into this tensor: `h = new`",
        None,
    ),
    ("h.normal_()", "aten::normal_", {}, "draw into a new tensor each time", None),
    ("w.clamp_(-1, 1)", "aten::clamp_", {"kind": "parameter"}, "clip the weights after the last backward", None),
    (
        "w.mul_(m).add_(v)",
        "aten::mul_",
        {"kind": "parameter"},
        "update the moving average after the last backward",
        None,
    ),
    ("w.lerp_(v, 0.1)", "aten::lerp_", {"kind": "parameter"}, "run its forward inside `with torch.no_grad():`", None),
    (
        "w.data.lerp_(v, 0.1)",
        "aten::lerp_",
        {"kind": "parameter", "via": "data"},
        "run its forward inside `with torch.no_grad():`",
        None,
    ),
    ("w -= lr * w.grad", "aten::sub_", {}, "update the weights after the last backward", None),
    ("w.copy_(v)", "aten::copy_", {"kind": "parameter"}, "change the weights after the last backward", None),
    (
        "self.u += v",
        "aten::add_",
        {"kind": "buffer"},
        "rebind the buffer instead of writing into it",
        "self.u = self.u + v",
    ),
    ("self.u.copy_(v)", "aten::copy_", {"kind": "buffer"}, "`self.u = new`", None),
]


@pytest.mark.parametrize(("text", "op", "facts", "words", "edited"), CAUSES, ids=[case[0] for case in CAUSES])
def test_the_help_fits_the_cause(text: str, op: str, facts: dict[str, object], words: str, edited: str | None) -> None:
    line = f"{text} = e" if text.endswith("]") else text
    program = Program(f"y = torch.sigmoid(h)\n{line}\nloss.backward()\n")
    written = text if "w.mul_" not in text else "w.mul_(m)"
    finding = found(program, "torch.sigmoid(h)", written, op, **facts)
    assert finding.code == "NC101"
    assert words in helped(finding)
    if edited is not None:
        assert edited in [text.splitlines()[1] for text in program.mended(finding)]


def test_a_recurrence_over_slots_is_collected_in_a_list() -> None:
    program = Program("for t in range(9):\n    h[t] = torch.sigmoid(h[t - 1])\nloss.backward()\n")
    finding = found(program, "torch.sigmoid(h[t - 1])", "h[t]", "aten::copy_")
    assert "`torch.stack`" in helped(finding)


MASKS = [
    ("h[h < 0] = 0", "`h.masked_fill(h < 0, 0)` or `h.clamp(min=0)`"),
    ("h[h > 1.0] = 1.0", "`h.masked_fill(h > 1.0, 1.0)` or `h.clamp(max=1.0)`"),
    ("h[h < 0] = -1", "`h.masked_fill(h < 0, -1)`"),
    ("h[x > 0] = 0", "`h.masked_fill(x > 0, 0)`"),
    ("h[~keep] = 0", "`h.masked_fill(~keep, 0)`"),
    ("h[padding_mask] = 0", "`h.masked_fill(padding_mask, 0)`"),
    ("h[bad] = h[bad] * 2", "`torch.where(bad, new, h)`"),
    ("h[bad] *= 2", "`torch.where(bad, new, h)`"),
]


@pytest.mark.parametrize(("line", "words"), MASKS)
@pytest.mark.parametrize("head", ["", "for x in data:"])
def test_a_write_to_a_mask_is_a_choice_and_not_a_part(line: str, words: str, head: str) -> None:
    indent = "    " * bool(head)
    program = Program(f"{head}\n{indent}bad = x > 0\n{indent}y = torch.sigmoid(h)\n{indent}{line}\nloss.backward()\n")
    text = line.partition("] ")[0] + "]"
    finding = found(program, "torch.sigmoid(h)", line if "*=" in line else text, "aten::index_put_")
    assert helped(finding) == f"choose instead of writing: {words} makes a new tensor"


def test_a_slice_of_a_tensor_is_not_told_to_be_bound_anew() -> None:
    program = Program("y = torch.sigmoid(h)\nh[0] += e\nloss.backward()\n")
    saved = save("SigmoidBackward0", "result", program.at("torch.sigmoid(h)"))
    add, copy = write("aten::add_", program.at("h[0] += e")), write("aten::copy_", program.at("h[0]"), order=6)
    tensor, element = explain(clobber(saved, add, copy)), explain(clobber(saved, add))
    assert tensor is not None
    assert element is not None
    assert "write into a clone" in helped(tensor)
    assert helped(element) == "write out of place"


def test_a_write_in_backward_asks_for_a_new_tensor_there() -> None:
    program = Program("loss = AlignmentLoss.apply(x)\ndlogits.mul_(upstream)\nloss.backward()\n")
    finding = found(
        program,
        "AlignmentLoss.apply(x)",
        "dlogits.mul_(upstream)",
        "aten::mul_",
        node=("AlignmentLossBackward", ""),
        in_forward=False,
        name=None,
    )
    assert (
        told(finding, "save").text == "a tensor of shape (4,) is saved here: `AlignmentLoss` keeps a tensor (version 0)"
    )
    assert helped(finding) == "return a new tensor from this `backward` and leave the saved tensor unchanged"
    assert program.mended(finding)[0].splitlines()[1] == "dlogits = dlogits * upstream"


HOOK = """
def steer(module, args, out):
    {body}
y = torch.sigmoid(h)
loss.backward()
"""
FOR_CALLER = "let `steer` return a new tensor, and let its caller use that: only the caller reads what is written"


@pytest.mark.parametrize(
    ("body", "written", "op", "is_for_caller"),
    [
        ("out[:, 0] = 0", "out[:, 0]", "aten::fill_", True),
        ("out *= 2", "out *= 2", "aten::mul_", True),
        ("args[0].add_(1)", "args[0].add_(1)", "aten::add_", True),
        ("F.relu(out, inplace=True)", "F.relu(out, inplace=True)", "aten::relu_", True),
        ("out *= 2\n    return out", "out *= 2", "aten::mul_", False),
        ("return out.mul_(2)", "out.mul_(2)", "aten::mul_", False),
        ("for one in args: y = out * 2; out += one", "out += one", "aten::add_", False),
        ("out = out.exp()\n    out += 1", "out += 1", "aten::add_", False),
    ],
)
def test_what_only_the_caller_reads_is_to_be_returned(body: str, written: str, op: str, is_for_caller: bool) -> None:
    program = Program(HOOK.format(body=body))
    assert (FOR_CALLER in helped(found(program, "torch.sigmoid(h)", written, op))) is is_for_caller


@pytest.mark.parametrize(
    ("taken", "is_part"),
    [
        ("head = att[:, 0]", True),
        ("head = att.view(-1)", True),
        ("head = att * 2", False),
        ("head = att", False),
        ("head = att.mean()", False),
    ],
)
@pytest.mark.parametrize("is_read", [True, False])
def test_a_new_tensor_for_a_part_would_not_reach_the_whole(taken: str, is_part: bool, is_read: bool) -> None:
    read = "print(att)" if is_read else "print(head)"
    program = Program(f"att = torch.sigmoid(h)\n{taken}\nhead *= 2\n{read}\nloss.backward()\n")
    words = "make a new `att` out of place: `head` is a part of it"
    assert (words in helped(found(program, "torch.sigmoid(h)", "head *= 2", "aten::mul_"))) is (is_part and is_read)


@pytest.mark.parametrize(
    ("program", "fills"),
    [
        ("for t in range(3):\n    y = torch.sigmoid(h)\n    h[t] = 1\nloss.backward()\n", True),
        ("while t < 3:\n    y = torch.sigmoid(h)\n    h[t] = 1\n    t += 1\nloss.backward()\n", True),
        ("for t in range(3):\n    y = torch.sigmoid(h)\n    h[0] = 1\nloss.backward()\n", False),
    ],
)
def test_parts_are_collected_only_where_a_loop_sets_their_place(program: str, fills: bool) -> None:
    text = "h[t]" if "h[t]" in program else "h[0]"
    finding = found(Program(program), "torch.sigmoid(h)", text, "aten::copy_")
    assert ("collect the parts in a list" in helped(finding)) is fills
