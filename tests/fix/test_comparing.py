"""Two runs are the same where their gradients are, and nowhere else."""

import torch

from noclobber.observe.comparing import compare
from noclobber.observe.evidence import sketch


def call(*leaves, loss=1.0, kind="backward", returned=()):
    return {
        "kind": kind,
        "roots": [torch.tensor(loss)],
        "leaves": [(sketch(leaf), gradient) for leaf, gradient in leaves],
        "returned": list(returned),
    }


def step(*gradients):
    shapes = [tuple(one.shape) for one in gradients]
    return {"kind": "step", "optimizer": ("SGD", shapes), "gradients": [sketch(one) for one in gradients]}


W, B = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0])
G, H = torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0])


def test_equal_gradients_are_the_same_bit_for_bit():
    found = compare([call((W, G), (B, H))], [call((W, G.clone()), (B, H.clone()))])
    assert (found.calls, found.exact, found.difference) == (1, True, "")


def test_rounding_passes_and_is_said():
    found = compare([call((W, G))], [call((W, G * (1 + 1e-6)))])
    assert not found.exact
    assert not found.difference
    assert compare([call((W, G))], [call((W, G * (1 + 1e-3)))]).difference


def test_float64_must_be_closer():
    assert compare([call((W, G.double()))], [call((W, G.double() * (1 + 1e-6)))]).difference


def test_leaves_are_paired_by_what_they_hold_not_by_their_order():
    assert not compare([call((W, G), (B, H))], [call((B, H), (W, G))]).difference
    assert compare([call((W, G), (B, H))], [call((W, H), (B, G))]).difference


def test_equal_leaves_are_paired_by_their_gradients():
    assert not compare([call((B, G), (B.clone(), H))], [call((B, H), (B.clone(), G))]).difference


def test_a_missing_gradient_an_extra_one_another_loss_another_call_differ():
    right = [call((W, G), (B, H))]
    assert "no gradient" in compare(right, [call((W, G))]).difference
    assert "gets none" in compare([call((W, G))], right).difference
    assert "loss" in compare(right, [call((W, G), (B, H), loss=2.0)]).difference
    assert compare(right, [call((W, G), (B, H), kind="grad")]).difference
    assert compare([call(returned=[G])], [call(returned=[None])]).difference


def test_infinite_and_missing_numbers_must_stand_where_they_stood():
    odd = torch.tensor([float("nan"), float("inf"), 1.0])
    assert compare([call((W, odd))], [call((W, odd.clone()))]).exact
    assert compare([call((W, odd))], [call((W, torch.tensor([float("nan"), -float("inf"), 1.0])))]).difference
    assert compare([call((W, odd))], [call((W, torch.tensor([0.0, float("inf"), 1.0])))]).difference


def test_zeros_may_be_missing_only_where_that_is_asked():
    right, found = [call((W, G), (B, torch.zeros(2)))], [call((W, G))]
    assert compare(right, found).difference
    assert not compare(right, found, truncated=True).difference


def test_the_gradients_of_a_step_count():
    assert not compare([call((W, G)), step(G)], [call((W, G)), step(G)]).difference
    assert "step 1" in compare([call((W, G)), step(G)], [call((W, G)), step(G + H)]).difference


def test_only_calls_that_both_made_are_compared():
    assert compare([call((W, G))] * 3, [call((W, G))] * 2).calls == 2


def test_calls_of_which_only_sketches_were_kept_are_compared_too():
    right, same, other = ([call((W, sketch(one)))] for one in (G, G.clone(), G * 1.01))
    assert compare(right, same).exact
    assert compare(right, other).difference


def test_gradients_that_are_all_left_out_prove_nothing():
    nothing = [call()]
    assert not compare(nothing, nothing).difference
    assert "zero" in compare(nothing, nothing, truncated=True).difference
    grad = [call(kind="grad", returned=[G])]
    assert not compare(grad, grad, truncated=True).difference
