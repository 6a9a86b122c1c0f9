"""What the rules say of refusals: the lines they blame, the headline, and the help that fits the cause."""

from __future__ import annotations

import pytest

from noclobber.model.reports.finding import Finding
from noclobber.model.seen.events import Refusal, Tensor
from noclobber.rules import explain

from .places import Program, helped, told
from .texts import texts

LEAF = "a leaf Variable that requires grad is being used in an in-place operation."
VIEW_OF_LEAF = "a view of a leaf Variable that requires grad is being used in an in-place operation."
FOUND = dict(reversed(texts()))
"""The first text of each rule."""
BELOW = "Output 0 of Split is a view and its base or another view of its base has been modified inplace. "
SEVERAL = BELOW + "This view is the output of a function that returns multiple views."
PARAMETER = Tensor((3,), name="fc.weight", kind="parameter")


def found(refusal: Refusal) -> Finding:
    """The finding, which must be one."""
    finding = explain(refusal)
    assert finding is not None
    assert sum(label.primary for label in finding.labels) == 1
    return finding


def mended(text: str, piece: str, message: str, op: str | None = None, **facts: object) -> tuple[Finding, list[str]]:
    """The finding of a write at `piece`, and the program after each change that `fix` would try."""
    program = Program(text)
    finding = found(Refusal(message, program.at(piece), op, **facts))  # type: ignore[arg-type]
    return finding, program.mended(finding)


def test_a_named_leaf_is_in_the_headline_and_its_line_is_blamed() -> None:
    program = Program("import torch\nfor p in params:\n    p -= 0.1 * p.grad\n")
    finding = found(Refusal(LEAF, program.at("p -= 0.1 * p.grad"), "aten::sub_", PARAMETER))
    assert finding.code == "NC301"
    assert finding.message == "in-place write to the parameter `fc.weight`, a leaf tensor that requires grad"
    label = told(finding, "write")
    assert (label.primary, label.span.line, label.text) == (True, 3, "`sub_` writes the leaf here")
    assert finding.tensor is not None
    assert finding.tensor.name == "fc.weight"


@pytest.mark.parametrize(
    ("line", "op", "words"),
    [
        ("p -= 0.1 * p.grad", "aten::sub_", "update the weights"),
        ("p.clamp_(-1, 1)", "aten::clamp_", "clip the weights"),
        ("p.mul_(0.9).add_(q)", "aten::mul_", "moving average"),
        ("p.lerp_(q, 0.1)", "aten::lerp_", "moving average"),
        ("p.normal_(0, 0.02)", "aten::normal_", "torch.nn.init"),
        ("p *= mask", "aten::mul_", "no gradient should flow"),
    ],
)
def test_what_trains_or_sets_up_a_weight_goes_under_no_grad(line: str, op: str, words: str) -> None:
    piece = "p.mul_(0.9)" if "mul_(" in line else line
    finding, texts = mended(f"import torch\nfor p in params:\n    {line}\n", piece, LEAF, op, tensor=PARAMETER)
    assert words in helped(finding)
    assert texts[0] == f"import torch\nfor p in params:\n    with torch.no_grad():\n        {line}\n"


def test_what_holds_a_text_of_several_lines_goes_under_nothing() -> None:
    row = 'p -= rates["""one\n    two"""] * p.grad'
    finding, texts = mended(f"import torch\nfor p in params:\n    {row}\n", row, LEAF, "aten::sub_", tensor=PARAMETER)
    assert "update the weights" in helped(finding)
    assert not any("    with torch.no_grad()" in one for one in texts)


def test_a_sum_of_losses_and_an_activation_are_written_out_of_place() -> None:
    finding, texts = mended("for x in data:\n    total += loss(x)\n", "total += loss(x)", LEAF, "aten::add_")
    assert "for x in data:\n    total = total + loss(x)\n" in texts
    assert "start the sum" in helped(finding)
    _, texts = mended("y = F.relu(x, inplace=True)\n", "F.relu(x, inplace=True)", LEAF, "aten::relu_")
    assert "y = F.relu(x)\n" in texts


def test_a_view_that_is_called_a_leaf_is_told_from_a_leaf() -> None:
    program = Program("head, tail = code[:2], code[2:]\nhead.copy_(x)\ntail.copy_(y)\n")
    site, tail = program.at("tail.copy_(y)"), Tensor((2,), name="tail")
    refusal = Refusal(LEAF, site, "aten::copy_", tail, created=program.at("code[2:]"))
    finding = found(refusal)
    assert "take each view right before" in helped(finding)
    assert finding.message == "in-place write to a leaf tensor that requires grad"
    made = Program("w = torch.zeros(3, requires_grad=True)\nw.copy_(y)\n")
    refusal = Refusal(LEAF, made.at("w.copy_(y)"), "aten::copy_", created=made.at("torch.zeros(3, requires_grad=True)"))
    assert told(found(refusal), "create").text == "the leaf is made here"


def test_a_leaf_marked_dirty_is_cloned_before_the_function() -> None:
    finding, texts = mended("y = Scale.apply(w)\n", "Scale.apply(w)", FOUND["NC301"])
    assert "ctx.mark_dirty" in finding.notes[0]
    assert texts[0] == "y = Scale.apply(w.clone())\n"


def test_weights_are_set_under_no_grad_but_embeddings_are_cloned() -> None:
    text = "import torch\ndef init(conv):\n    b = conv.bias.view(3, 5)\n    b[:, 4] -= math.log(9)\n"
    finding, after = mended(text, "b[:, 4]", VIEW_OF_LEAF, "aten::sub_", is_saved=False)
    assert finding.code == "NC302"
    assert after[0].endswith("    with torch.no_grad():\n        b[:, 4] -= math.log(9)\n")
    finding, _ = mended(text, "b[:, 4]", VIEW_OF_LEAF, "aten::sub_", tensor=PARAMETER)
    assert finding.message.startswith("in-place write to a view of the parameter `fc.weight`")
    text = "def merge(embeds, at, image):\n    flat = embeds.reshape(6, 3)\n    flat[at] = image\n    return flat\n"
    _, after = mended(text, "flat[at]", VIEW_OF_LEAF, "aten::index_put_")
    assert "    flat = flat.clone()\n    flat[at] = image\n" in after[0]


def test_a_tracked_value_is_never_put_under_no_grad() -> None:
    program = Program(
        "import torch\ndef paste(tile):\n    tile[0] = net(code)\ndef fill():\n    tail.copy_(net(code))\n"
    )
    for piece, message in (("tile[0]", VIEW_OF_LEAF), ("tile[0]", FOUND["NC304"]), ("tail.copy_(net(code))", LEAF)):
        finding = found(Refusal(message, program.at(piece), "aten::copy_"))
        assert not any("no_grad" in text for text in program.mended(finding))


def test_the_clone_of_a_function_s_argument() -> None:
    _, texts = mended("y = Scale.apply(w[:2], g)\n", "Scale.apply(w[:2], g)", VIEW_OF_LEAF)
    assert texts[0] == "y = Scale.apply(w[:2].clone(), g)\n"


def test_one_of_several_views() -> None:
    finding, texts = mended("a, b = x.split(2)\na += 1\nb(a)\n", "a += 1", FOUND["NC303"], "aten::add_")
    assert finding.code == "NC303"
    assert "a, b = x.split(2)\na = a + 1\nb(a)\n" in texts
    assert helped(finding) == "write out of place"
    finding, texts = mended("s = [h.squeeze_(0) for h in hs]\n", "h.squeeze_(0)", FOUND["NC303"], "aten::squeeze_")
    assert "s = [h.squeeze(0) for h in hs]\n" in texts
    assert "use `squeeze`" in helped(finding)
    loop = Program("for c, m in zip(image, means):\n    c.sub_(m)\n")
    refusal = Refusal(FOUND["NC303"], loop.at("c.sub_(m)"), "aten::sub_", created=loop.at("zip(image, means)"))
    chained = Program("for c, m in pairs:\n    c.sub_(m).div_(2)\n")
    assert "range(len(t))" in helped(found(Refusal(FOUND["NC303"], chained.at("c.sub_(m)"))))
    columns = Program("for c in t.unbind(1):\n    c.sub_(m)\n")
    assert "join them along the same dimension" in helped(found(Refusal(FOUND["NC303"], columns.at("c.sub_(m)"))))
    finding = found(refusal)
    assert "range(len(t))" in helped(finding)
    assert told(finding, "create").span.line == 1


def test_a_write_below_a_view_is_blamed_where_it_was_not_where_it_surfaces() -> None:
    program = Program("a, b = x.split(2)\nx += 1\ny = a * 2\n")
    created, written = program.at("x.split(2)"), program.at("x += 1")
    finding = found(Refusal(SEVERAL, program.at("a * 2"), "aten::add_", created=created, written=written))
    roles = [(label.role, label.span.line, label.primary) for label in finding.labels]
    assert roles == [("create", 1, False), ("write", 2, True), ("read", 3, False)]
    assert helped(finding).startswith("make the views after the write, if they are to show it\n")
    unknown = found(Refusal(SEVERAL, program.at("a * 2"), call="access"))
    assert told(unknown, "read").text == "the view is used here, after the write to its base"


def test_a_library_line_is_shown_inside() -> None:
    library = Program("def f(t):\n    return t.sub_(1)\n", "/usr/lib/python3/site-packages/visions/ops.py")
    program = Program("y = f(x)\n")
    site = program.at("f(x)", inside=library.at("t.sub_(1)"))
    finding = found(Refusal(FOUND["NC303"], site, "aten::sub_"))
    assert told(finding, "inside").text == "the write runs here, inside `visions`"
    assert told(finding, "write").span.path == program.path
