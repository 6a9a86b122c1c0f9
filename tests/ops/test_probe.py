"""`noclobber.probe`: what is kept by operators, modules, custom Functions, custom operators and checkpoints."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import noclobber


def kept(probe: Any) -> list[str]:
    return [one.name for one in probe.operands if one.kept]


X = torch.tensor([0.5, 0.25])


def test_exp_keeps_its_result_and_pow_its_input() -> None:
    assert kept(noclobber.probe(torch.exp, X)) == ["result"]
    assert kept(noclobber.probe(torch.pow, X, 2)) == ["self"]
    assert noclobber.probe(torch.exp, X).outputs["result"].by == ("ExpBackward0.result",)


def test_what_a_product_keeps_depends_on_who_requires_a_gradient() -> None:
    leaf = torch.ones(2, requires_grad=True)
    assert kept(noclobber.probe(torch.mul, leaf, X)) == ["other"]
    assert kept(noclobber.probe(torch.mul, X, leaf)) == ["self"]
    assert kept(noclobber.probe(torch.mul, X, X.clone())) == ["self", "other"]


def test_an_input_that_is_given_twice_is_one_tensor() -> None:
    probe = noclobber.probe(torch.mul, X, X)
    assert kept(probe) == ["self", "other"]
    assert probe.inputs["other"].also == "self"
    assert probe.bytes == X.untyped_storage().nbytes()


def test_a_module_keeps_its_input_and_its_weights_and_is_left_as_it_was() -> None:
    norm = torch.nn.BatchNorm1d(2)
    probe = noclobber.probe(norm, torch.rand(4, 2))
    assert kept(probe) == ["input", "weight", "running_mean", "running_var"]
    assert probe.own > 0
    assert probe.inputs["weight"].role == "parameter"
    assert torch.equal(norm.running_mean, torch.zeros(2))
    assert norm.num_batches_tracked == 0


def test_an_argument_is_left_as_it_was() -> None:
    given = X.clone()
    assert kept(noclobber.probe(torch.relu_, given)) == ["self", "result"]
    assert torch.equal(given, X)
    assert given._version == 0
    assert not given.requires_grad


def test_a_view_and_its_base_are_the_same_memory() -> None:
    probe = noclobber.probe(torch.unbind, torch.rand(2, 2))
    assert probe.outputs["result[0]"].also == "self"
    assert "several views" in probe.outputs["result[0]"].by[0]


class OnCtx(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.x * gradient


class InAList(OnCtx):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward()
        ctx.read = lambda: x
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.read() * gradient


@pytest.mark.parametrize("function", [OnCtx, InAList])
def test_what_a_custom_function_keeps_unsaved_is_found_and_said_to_be_unnoticed(function: Any) -> None:
    probe = noclobber.probe(function.apply, X)
    (operand,) = [one for one in probe.operands if one.kept]
    assert operand.role == "input"
    assert not operand.noticed
    assert "PyTorch does not notice a write" in str(probe)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_keeps_its_arguments(reentrant: bool) -> None:
    probe = noclobber.probe(lambda x: checkpoint(torch.sin, x, use_reentrant=reentrant), X)
    assert kept(probe) == ["x"]


def test_a_custom_operator() -> None:
    @torch.library.custom_op("noclobber_tests::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3

    cube.register_autograd(
        lambda ctx, gradient: 3 * ctx.saved_tensors[0] ** 2 * gradient,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    assert kept(noclobber.probe(torch.ops.noclobber_tests.cube, X)) == ["x"]


def test_containers_and_keywords_have_names() -> None:
    pair = namedtuple("pair", "a b")
    probe = noclobber.probe(lambda pair, *, scale: pair.a * pair.b * scale["s"], pair(X, X.clone()), scale={"s": X})
    assert kept(probe) == ["pair[0]", "pair[1]", "scale['s']"]


def test_what_a_function_raises_comes_through() -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        noclobber.probe(torch.add, torch.ones(2), torch.ones(3))


def test_a_function_that_breaks_its_own_gradient_is_said_to() -> None:
    probe = noclobber.probe(lambda x: x.exp().mul_(2), X)
    assert probe.notes == ("the call overwrites a tensor that it keeps itself: its backward raises",)


def test_no_gradient_keeps_nothing() -> None:
    probe = noclobber.probe(torch.argsort, X)
    assert not probe.differentiable
    assert kept(probe) == []


def test_the_table_and_the_notebook_say_the_same() -> None:
    probe = noclobber.probe(torch.exp, X)
    assert str(probe) == (
        "exp\n"
        "  self    input float32[2]   free\n"
        "  result  output float32[2]  kept by ExpBackward0.result\n"
        "  8 B kept for backward"
    )
    assert "<td>kept by ExpBackward0.result</td>" in probe._repr_html_()


def test_random_numbers_of_the_program_stay_as_they_are() -> None:
    torch.manual_seed(3)
    right = torch.rand(1)
    torch.manual_seed(3)
    noclobber.probe(torch.nn.functional.dropout, X)
    assert torch.equal(torch.rand(1), right)


@pytest.mark.parametrize("contents", [False, True])
@pytest.mark.filterwarnings("ignore::noclobber.ClobberWarning")
def test_a_session_does_not_see_a_trial_and_goes_on_afterwards(contents: bool) -> None:
    with noclobber.watch(contents=contents) as before:
        pass
    leaf = torch.ones(2, requires_grad=True)
    with noclobber.watch(contents=contents) as seen:
        y = leaf.exp()
        assert kept(noclobber.probe(InAList.apply, X)) == ["args[0]"]
        assert kept(noclobber.probe(torch.exp, X)) == ["result"]
        assert kept(noclobber.probe(lambda x: checkpoint(torch.sin, x, use_reentrant=False), X)) == ["x"]
        assert seen.findings == ()
        y.data.mul_(0)
        y.sum().backward()
        assert [one.code for one in seen.findings] == ["NC201"]
    assert seen.report.coverage.unseen == before.report.coverage.unseen
    assert seen.report.coverage.lost == ()


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_of_a_model_in_a_closure_stay_as_they_are(reentrant: bool) -> None:
    linear = torch.nn.Linear(2, 2)
    linear(X).sum().backward()
    right = [one.grad.clone() for one in linear.parameters()]
    noclobber.probe(lambda x: checkpoint(linear, x, use_reentrant=True) if reentrant else linear(x).exp(), X)
    assert all(torch.equal(one.grad, grad) for one, grad in zip(linear.parameters(), right, strict=True))


def test_a_function_class_is_applied() -> None:
    assert kept(noclobber.probe(OnCtx, X)) == kept(noclobber.probe(OnCtx.apply, X)) != []


def without_values(function: Any, *args: Any) -> list[str]:
    with noclobber.fake(device="cpu"):
        return str(noclobber.probe(function, *args)).splitlines()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def test_a_probe_without_values_says_the_same() -> None:
    leaf, module = torch.ones(2, requires_grad=True), torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.GELU())
    for function, args in ((torch.sigmoid, (X,)), (torch.mul, (leaf, X)), (module, (X,)), (torch.split, (X, 1))):
        assert without_values(function, *args) == str(noclobber.probe(function, *args)).splitlines()
    with noclobber.fake(device="cuda:H100"):
        big = torch.randn(100_000, 100_000, device="cuda", requires_grad=True)  # 40 GB
        assert kept(noclobber.probe(torch.exp, big)) == ["result"]
        assert big.grad is None


def test_what_only_trials_show_is_not_told_without_values() -> None:
    assert any("without values, nothing can be tried" in line for line in without_values(Doubled, X))
