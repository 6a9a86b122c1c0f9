"""What the rules say of refusals, continued: modes, Functions, memory, types, transforms, and every other text."""

from __future__ import annotations

import pytest

from noclobber.model.seen.events import Refusal, Tensor
from noclobber.rules import explain

from .places import Program, helped, told
from .test_refusals import FOUND, found, mended

CAST = "result type Float can't be cast to the desired output type Long"
SHAPE = "output with shape [4] doesn't match the broadcast shape [2, 4]"
READ = "some elements of the input tensor and the written-to tensor refer to a single memory location."
SHARED = "more than one element of the written-to tensor refers to a single memory location."
DETACH = "Can't detach views in-place. Use detach() instead."
PACK = "A saved tensor pack hook is modifying its input in place."
SAVED = "Inference tensors cannot be saved for backward."


def test_the_mode_of_the_view_is_named() -> None:
    program = Program("import torch\nwith torch.no_grad():\n    v = x[:2]\nv *= 2\n")
    refusal = Refusal(FOUND["NC304"], program.at("v *= 2"), "aten::mul_", created=program.at("x[:2]"))
    finding = found(refusal)
    assert (finding.code, told(finding, "create").text) == ("NC304", "the view is made here, under `no_grad`")
    assert "write inside `with torch.no_grad():` too" in helped(finding)
    inference = found(Refusal("A view was created in inference mode and is being modified inplace", refusal.site))
    assert "`inference_mode`" in inference.message


def test_a_hooked_activation_is_built_out_of_place() -> None:
    program = Program("net = nn.ReLU(inplace=True)\ny = net(x)\n")
    finding = found(Refusal(FOUND["NC305"], program.at("net(x)"), "aten::relu_"))
    assert (finding.code, "full backward hook" in finding.message) == ("NC305", True)
    assert "m.inplace = False" in helped(finding)
    finding, texts = mended("out = conv(x)\nout += skip\nout()\n", "out += skip", FOUND["NC305"], "aten::add_")
    assert "out = conv(x)\nout = out + skip\nout()\n" in texts
    assert "write out of place" in helped(finding)


def test_a_function_that_returns_a_view_is_named() -> None:
    message = "Output 0 of Flat is a view and is being modified inplace. This view was created inside a custom Function"
    finding = found(Refusal(message, Program("y += 1\n").at("y += 1"), "aten::add_"))
    assert finding.message == "in-place write to a view returned by the custom Function `Flat`"
    assert "return x.clone()" in helped(finding)


def test_an_inference_tensor_that_is_kept_is_a_save() -> None:
    program = Program("with torch.inference_mode():\n    f = net(x)\nloss = w * f\n")
    finding = found(Refusal(SAVED, program.at("w * f"), created=program.at("net(x)"), call="save"))
    assert (finding.code, told(finding, "save").primary) == ("NC306", True)
    assert told(finding, "create").text == "the inference tensor is made here"
    assert "`torch.no_grad()` instead of" in helped(finding)
    finding, texts = mended("total /= n\ntotal()\n", "total /= n", FOUND["NC306"], "aten::div_")
    assert texts[0] == "total = total / n\ntotal()\n"
    assert "write out of place" in helped(finding)


@pytest.mark.parametrize(
    ("before", "piece", "op", "after"),
    [
        ("x += x.t()\n", "x += x.t()", "aten::add_", "x += x.t().clone()\n"),
        ("out[1] = out[1].mT\n", "out[1]", "aten::copy_", "out[1] = out[1].mT.clone()\n"),
        ("x[1:].copy_(x[:-1])\n", "x[1:].copy_(x[:-1])", "aten::copy_", "x[1:].copy_(x[:-1].clone())\n"),
    ],
)
def test_a_tensor_written_onto_itself_is_written_from_a_clone(before: str, piece: str, op: str, after: str) -> None:
    finding, texts = mended(before, piece, READ, op)
    assert finding.code == "NC307"
    assert texts[0] == after


def test_an_expanded_tensor_is_written_out_of_place() -> None:
    finding, texts = mended("def f(x):\n    return x.sub_(m).div_(s)\n", "x.sub_(m)", SHARED, "aten::sub_")
    assert finding.code == "NC307"
    assert "def f(x):\n    return x.sub(m).div(s)\n" in texts
    assert helped(finding).startswith("write out of place\n")
    assert "expand" in helped(finding)


@pytest.mark.parametrize(
    ("line", "piece", "op"),
    [
        ("x /= 2", "x /= 2", "aten::div_"),
        ("x /= 2", "x /= 2", None),
        ("x.add_(y)", "x.add_(y)", None),
        ("torch.add(x, y, out=z)", "torch.add(x, y, out=z)", None),
        ("torch.add(x, y, out=z)", "torch.add(x, y, out=z)", "aten::add.out"),
        ("x[0] = y", "x[0]", None),
    ],
)
def test_a_result_that_does_not_fit_is_told_of_a_write(line: str, piece: str, op: str | None) -> None:
    for message in (CAST, SHAPE):
        assert found(Refusal(message, Program(line + "\n").at(piece), op)).code == "NC308"


@pytest.mark.parametrize(
    ("line", "piece", "op"),
    [
        ("y = F.linear(x, w, b)", "F.linear(x, w, b)", None),
        ("y = F.dropout(n)", "F.dropout(n)", "aten::dropout"),
        ("total += F.soft_margin_loss(x, y)", "F.soft_margin_loss(x, y)", None),
        ("loss = self.criterion(x, y)", "self.criterion(x, y)", None),
    ],
)
def test_the_same_text_of_a_functional_operation_is_nobody_s(line: str, piece: str, op: str | None) -> None:
    for message in (CAST, SHAPE):
        assert explain(Refusal(message, Program(line + "\n").at(piece), op)) is None


def test_out_is_taken_as_a_result() -> None:
    call = "torch.add(x, 1, out=y)"
    finding, texts = mended(f"{call}\ny()\n", call, FOUND["NC309"], "aten::add.out")
    assert finding.code == "NC309"
    assert texts[0] == "y = torch.add(x, 1)\ny()\n"


def test_transforms() -> None:
    program = Program("def f(a):\n    z[0] = a\n    return z\n")
    vmap = "vmap: inplace arithmetic(self, *extra_args) is not possible because there exists a Tensor `other`"
    finding = found(Refusal(vmap, program.at("z[0]"), "aten::copy_"))
    assert (finding.code, "new_zeros" in helped(finding)) == ("NC310", True)
    captured = "attempted to call in-place operation (aten::add_.Tensor) that would mutate a captured Tensor"
    buffer = Tensor((3,), name="bn.running_mean", kind="buffer")
    finding = found(Refusal(captured, program.at("z[0]"), tensor=buffer))
    assert (finding.code, told(finding, "write").text) == ("NC311", "`add_` writes it here")
    assert "replace_all_batch_norm_modules_" in helped(finding)


@pytest.mark.parametrize(("code", "words"), [("NC312", "`jvp`"), ("NC313", "drop this `mark_dirty`")])
def test_a_function_is_blamed_where_it_is_applied(code: str, words: str) -> None:
    finding = found(Refusal(FOUND[code], Program("y = Scale.apply(x)\n").at("Scale.apply(x)")))
    assert (finding.code, told(finding, "write").text) == (code, "the Function is applied here")
    assert words in helped(finding) + finding.message


def test_detach_of_a_view_becomes_a_new_tensor() -> None:
    finding, texts = mended("def cut(h):\n    h.detach_()\n    return h\n", "h.detach_()", DETACH, "aten::detach_")
    assert (finding.code, finding.message) == ("NC399", "`detach_` on a view")
    assert "def cut(h):\n    h = h.detach()\n    return h\n" in texts


def test_a_pack_hook_is_blamed_at_its_own_line_and_the_save_is_shown() -> None:
    program = Program("def pack(t):\n    return t.clamp_(-1, 1)\ny = x.exp()\n")
    site, written = program.at("x.exp()"), program.at("t.clamp_(-1, 1)")
    finding = found(Refusal(PACK, site, "aten::clamp_", saved=site, written=written, call="save"))
    assert [(label.role, label.span.line, label.primary) for label in finding.labels] == [
        ("save", 3, False),
        ("write", 2, True),
    ]
    assert any("    return t.clamp(-1, 1)\n" in text for text in program.mended(finding))


def test_an_error_that_surfaces_in_backward_offers_no_edit_there() -> None:
    message = "In-place leakyReLu backward calculation is triggered with a negative slope which is not supported."
    program = Program("loss.backward()\n")
    finding = found(Refusal(message, program.at("loss.backward()"), call="backward"))
    assert (finding.code, told(finding, "read").text) == ("NC399", "backward reads it here")


def test_a_function_that_writes_is_blamed_at_its_write() -> None:
    program = Program("class F:\n    def forward(ctx, x):\n        return x.mul_(2), x.sum()\ny = F.apply(h[:2])\n")
    message = "If your Function modifies inplace an input that is a view of another Tensor, your Function cannot return"
    finding = found(Refusal(message, program.at("F.apply(h[:2])"), "aten::mul_", written=program.at("x.mul_(2)")))
    assert [(label.role, label.span.line, label.text) for label in finding.labels] == [
        ("write", 3, "`mul_` writes its input here"),
        ("read", 4, "the Function is applied here"),
    ]
    assert "give the Function a clone" in helped(finding)
