"""Two runs are the same where their gradients are, and nowhere else."""

import torch

from noclobber.observe.gradient_trace.comparison import besides, compare, identical, summed
from noclobber.observe.gradient_trace.evidence import sketch


def call(*leaves, loss=1.0, kind="backward", returned=()):
    return {
        "kind": kind,
        "roots": [torch.tensor(loss)],
        "leaves": [(sketch(leaf), gradient, name) for leaf, gradient, name in map(named, leaves)],
        "returned": list(returned),
    }


def named(leaf):
    return leaf if len(leaf) == 3 else (*leaf, "")


def step(*gradients, names=()):
    optimizer = ("SGD", [tuple(one.shape) for one in gradients], names)
    return {"kind": "step", "optimizer": optimizer, "gradients": [sketch(one) for one in gradients], "names": []}


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


def test_weights_that_moved_below_a_backward_are_paired_by_name():
    right = [call((W, G, "net.a")), call((W * 2, H, "net.a"))]
    later = [call((W * 0.5, G, "net.a")), call((W, H, "net.a"))]
    assert not compare(right, later).difference
    assert "differs" not in compare(right, later).difference
    assert compare(right, [call((W * 0.5, G)), call((W, H))]).difference
    assert compare(right, [call((W * 0.5, G, "net.b")), call((W, H, "net.b"))]).difference
    assert compare(right, [call((W * 0.5, H, "net.a")), call((W, H, "net.a"))]).difference
    assert compare(right, [call((W, G, "net.a")), call((W * 3, H, "net.a"))]).difference


def test_weights_that_a_program_sets_by_itself_may_hold_anything_where_later_losses_are_the_same():
    right = [call((W * held, G, "net.a"), loss=held) for held in (1.0, 2.0, 4.0, 8.0)]
    moved = [call((W * held, G, "net.a"), loss=loss) for held, loss in ((1, 1.0), (3, 2.0), (5, 4.0), (9, 8.0))]
    assert not compare(right, moved).difference
    assert compare(right, [*moved[:2], call((W * 5, G, "net.a"), loss=4.5), moved[3]]).difference
    assert compare(right, [*right[:3], moved[3]]).difference


def test_weights_may_move_below_several_backwards_and_hold_until_then_what_an_optimizer_left():
    stepped = {"kind": "stepped", "optimizer": ("SGD", [(2,)], [""]), "held": [sketch(W * 3)]}
    right = [call((W * 2, G, "net.a")), call((W * 2, H, "net.a")), stepped, call((W * 4, G, "net.a"))]
    found = [call((W, G, "net.a")), call((W, H, "net.a")), stepped, call((W * 3, G, "net.a"))]
    assert not compare(right, found).difference
    assert compare(right, [call((W, G, "net.a")), call((W * 7, H, "net.a"))]).difference
    assert compare(right, [*found[:3], call((W * 7, G, "net.a"))]).difference


def test_the_sum_of_two_losses_has_the_sum_of_their_gradients():
    two = [call((W, G, "net.a"), (B, G, "net.b"), loss=1.0), call((W * 2, H, "net.a"), loss=3.0)]
    assert not compare(summed(two), [call((W, G + H, "net.a"), (B, G, "net.b"), loss=4.0)]).difference
    assert compare(summed(two), [call((W, G, "net.a"), (B, G, "net.b"), loss=4.0)]).difference
    assert compare(summed(two), [call((W, G + H, "net.a"), (B, G, "net.b"), loss=1.0)]).difference
    assert not summed(two[:1])
    assert not summed([call((W, G)), call((W, H))])


def test_steps_of_optimizers_of_equal_shapes_are_paired_by_what_they_step():
    """As where each parameter has an optimizer of its own, which a hook steps."""
    one, other = step(G, names=["0.bias"]), step(H, names=["1.bias"])
    assert not compare([call((W, G)), one, other], [call((W, G)), other, one]).difference
    assert "step 1" in compare([call((W, G)), one], [call((W, G)), step(H, names=["0.bias"])]).difference
    unnamed = step(G), step(H)
    assert "step 1" in compare([call((W, G)), *unnamed], [call((W, G)), *unnamed[::-1]]).difference
    elsewhere = step(G, names=["3.bias"]), step(H, names=["4.bias"])
    assert "step 1" in compare([call((W, G)), one, other], [call((W, G)), *elsewhere[::-1]]).difference


def test_updates_may_change_places_where_each_step_gets_what_it_got():
    first, second = call((W, G), loss=1.0), call((B, H), loss=2.0)
    steps = step(G), step(H, G)
    swapped = compare([first, steps[0], second, steps[1]], [second, steps[1], first, steps[0]])
    assert (swapped.calls, swapped.difference) == (2, "")
    assert "step 1" in compare([first, steps[0], second, steps[1]], [second, step(H, H), first, steps[0]]).difference
    assert compare([first, second], [second, first]).difference  # nothing steps: what sums up is not known
    other = call((B, G), loss=2.0)
    assert "call 1" in compare([first, steps[0], second], [other, steps[0], first]).difference


def test_a_call_whose_counterpart_comes_later_is_not_counted():
    first, second, third = (call((W, G), loss=loss) for loss in (1.0, 2.0, 3.0))
    found = compare([first, step(G), second, first], [second, step(G), first, third])
    assert (found.calls, found.displaced, found.difference) == (2, 1, "")
    assert "call 3" in compare([first, step(G), second, first], [first, step(G), second, third]).difference


def test_the_loss_of_a_backward_that_failed_counts():
    right, wrong = ({"kind": "failed", "roots": [torch.tensor(one)]} for one in (2.0, 3.0))
    wanted = [call((W, G)), call((W, G), loss=2.0)]
    assert not compare(wanted, [call((W, G)), right]).difference
    assert "call 2: the loss differs" in compare(wanted, [call((W, G)), wrong]).difference


def test_what_the_leaves_hold_in_the_end_counts():
    ends = [{"kind": "end", "leaves": {"main: net.a": sketch(one)}} for one in (W, W.clone(), W * 2)]
    assert not besides([call((W, G)), ends[0]], [call((W, G)), ends[1]], exact=True)
    assert "in the end `net.a`" in besides([call((W, G)), ends[0]], [call((W, G)), ends[2]], exact=True)
    assert not besides([call((W, G)), ends[0]], [call((W, G))], exact=True)  # it was not run to its end


def with_buffers(*held):
    return [
        call((W, G)) | {"buffers": {"0 BatchNorm1d.running_mean": sketch(one)}, "state": {}, "bare": {}, "numbers": {}}
        for one in held
    ]


def test_buffers_hold_the_same_at_each_call():
    right = with_buffers(W, W * 2, W * 3)
    assert not besides(right, with_buffers(W, W * 2, W * 3), exact=True)
    for others in ([W, W, W], [W, W * 2, W * 4], [W * 2, W * 4, W * 8]):
        said = besides(right, with_buffers(*others), exact=False)
        assert said == "the buffer `BatchNorm1d.running_mean` holds something else"


def test_a_buffer_may_get_there_a_call_sooner_or_later_and_not_never():
    assert not besides(with_buffers(W, W * 2, W * 3), with_buffers(W * 2, W * 3, W * 4), exact=True)
    assert not besides(with_buffers(W, W * 2, W * 3), with_buffers(W, W, W * 2), exact=True)
    assert besides(with_buffers(W, W * 2), with_buffers(W, W), exact=True)


def test_a_step_leaves_the_same_parameters_and_state():
    def stepped(*held):
        return [{"kind": "stepped", "optimizer": ("Adam", [(2,)], [""]), "held": [sketch(one) for one in held]}]

    assert not besides(stepped(W, G), stepped(W, G), exact=True)
    assert "step 1 of Adam" in besides(stepped(W, G), stepped(W, G * 2), exact=True)
    assert "step 1 of Adam" in besides(stepped(W, G), stepped(W), exact=True)
    assert not besides(stepped(W, G), stepped(W, G * 1.001), exact=False)
    assert not besides(stepped(W, G), stepped(W, G * 2), exact=True, stepped=False)


def test_what_modules_hold_in_the_end_counts_up_to_rounding():
    ends = [{"kind": "end", "leaves": {}, "held": {"2 Linear.weight": sketch(one)}} for one in (W, W * 1.001, W * 2)]
    assert not besides(ends[:1], ends[1:2], exact=False)
    assert besides(ends[:1], ends[1:2], exact=True) == "in the end `Linear.weight` holds something else"
    assert besides(ends[:1], ends[2:], exact=False)


def test_identical_is_to_the_last_bit():
    """Also where only a sketch was kept, and where numbers that are equal have other bits."""
    for one, other in ((G, G * (1 + 2**-23)), (torch.zeros(2), -torch.zeros(2))):
        for kept in (torch.clone, sketch):
            assert identical([call((W, kept(one)))], [call((W, kept(one.clone())))])
            assert not identical([call((W, kept(one)))], [call((W, kept(other)))])
    assert not identical([call((W, G))], [call((W, G)), {"kind": "end", "leaves": {}, "held": {}}])


def test_a_tensor_that_wraps_others_is_compared_by_what_it_holds():
    """A jagged tensor: its values, and where its rows begin."""
    rows = [torch.ones(2, 3), torch.full((1, 3), 2.0)]
    one, same = (torch.nested.nested_tensor(rows, layout=torch.jagged) for _ in range(2))
    moved = torch.nested.nested_tensor([torch.ones(1, 3), torch.cat([torch.ones(1, 3), rows[1]])], layout=torch.jagged)
    assert sketch(one).numbers == sketch(same).numbers
    assert sketch(one).numbers != sketch(moved).numbers
