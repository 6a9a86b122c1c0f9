"""Names of operators, nodes and fields in words; bytes; when a loop is said to be one."""

from __future__ import annotations

import pytest

from noclobber.model.seen.events import Save, Tensor, Write
from noclobber.model.seen.overlap import Region
from noclobber.model.units import listed
from noclobber.rules.shared.labels import later
from noclobber.rules.shared.wording import (
    is_custom,
    keeps,
    name_in_words,
    node_in_words,
    op_in_words,
    version_in_words,
)

from .places import Program

NODES = {
    "SigmoidBackward0": "sigmoid",
    "Sigmoid": "sigmoid",
    "AddmmBackward0": "linear (addmm)",
    "ConvolutionBackward0": "conv",
    "CudnnConvolutionBackward0": "conv",
    "NativeLayerNormBackward0": "layer_norm",
    "CudnnBatchNormBackward0": "batch_norm",
    "MaxPool2DWithIndicesBackward0": "max_pool2d",
    "LogSoftmaxBackward0": "log_softmax",
    "Log1PBackward0": "log1p",
    "Expm1Backward0": "expm1",
    "Expm1": "expm1",
    "Elu1": "elu",
    "SmoothL1LossBackward0": "smooth_l1_loss",
    "SigmoidBackwardBackward0": "the backward of sigmoid",
    "ScaledDotProductFlashAttentionForCpuBackward0": "scaled_dot_product_attention",
    "torch::autograd::CopyBackwards": "copy_",
    "torch::autograd::CopySlices": "a write to a view",
    "AlignmentLossBackward": "`AlignmentLoss`",
}


@pytest.mark.parametrize(("node", "words"), NODES.items())
def test_nodes(node: str, words: str) -> None:
    assert node_in_words(node) == words


def test_only_a_function_of_the_program_is_custom() -> None:
    assert is_custom("AlignmentLossBackward")
    assert not any(is_custom(node) for node in ("ExpBackward0", "AccumulateGrad", "torch::autograd::CopyBackwards"))


@pytest.mark.parametrize(
    ("node", "field", "words"),
    [
        ("SigmoidBackward0", "result", "sigmoid keeps its result"),
        ("PowBackward0", "self", "pow keeps its input `self`"),
        ("MulBackward0", "other", "mul keeps its operand `other`"),
        ("ConvolutionBackward0", "weight", "conv keeps its weight"),
        ("ConvolutionBackward0", "input", "conv keeps its input"),
        ("NativeBatchNormBackward0", "running_var", "batch_norm keeps its running var"),
        ("AlignmentLossBackward", "saved[0]", "`AlignmentLoss` keeps a tensor"),
    ],
)
def test_what_is_kept(node: str, field: str, words: str) -> None:
    assert keeps(Save(node, field, Tensor(), 0)) == words


def test_operators() -> None:
    assert op_in_words("aten::add_") == op_in_words("aten.add_.Tensor") == "add_"
    assert op_in_words("mylib::scale_") == "mylib::scale_"


def test_bytes() -> None:
    assert Tensor((2, 3), "float64").nbytes == Tensor((2, 3), "torch.float64").nbytes == 48
    assert Tensor((4,), "float4_e2m1fn_x2").nbytes == 0
    assert Tensor((9,), region=Region(0, (4,), (4,), 4)).nbytes == 16


def test_names_lists_and_versions() -> None:
    assert name_in_words(Tensor(name="net.fc.weight")) == "`net.fc.weight`"
    assert name_in_words(Tensor((2, 3))) == "a tensor of shape (2, 3)"
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert version_in_words(Write("aten::add_", version_before=2, version_after=3)) == " (version 2 -> 3)"
    assert version_in_words(Write("aten::add_", version_before=2, version_after=2)) == ""


def test_later_on_one_line_follows_the_order_of_evaluation() -> None:
    program = Program("while go():\n    y = torch.sigmoid(x).add_(1)\n")
    saved, written = program.at("torch.sigmoid(x)"), program.at("torch.sigmoid(x).add_(1)")
    assert later(saved, written) == ""
    assert later(written, saved) == "in a later iteration"
    assert later(saved, saved) == ""  # one call may have run two modules one after the other
