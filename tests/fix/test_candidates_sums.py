"""Two backwards of one forward become one, of the sum of their losses."""

from textwrap import dedent

import pytest

from tests.fix.mending import mended

SHARED = """
    first.backward()
    print(first.item())
    second.backward()
    opt.step()
"""
STEPPED = """
    first.backward(retain_graph=True)
    opt.step()
    opt.zero_grad()
    second.backward()
    opt.step()
"""


def shared(source: str) -> list[str]:
    """The candidates for a graph that another backward has freed, which sum the losses."""
    found = mended("NC104", source, freed="first.backward(", read="second.backward(")
    return [one for one in found if "(first + second).backward()" in one]


def stepped(source: str) -> list[str]:
    """The same for a step between both backwards."""
    found = mended("NC103", source, write="opt.step()", read="second.backward()", op="SGD.step")
    return [one for one in found if "(first + second).backward()" in one]


def test_two_losses_of_one_graph_are_summed() -> None:
    assert shared(SHARED)[0] == "print(first.item())\n(first + second).backward()\nopt.step()\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("print(first.item())", "print(net.weight.grad)"),
        ("print(first.item())", "clip_grad_norm_(net.parameters(), 1)"),
        ("print(first.item())", "opt.step()"),
        ("print(first.item())", "first = first.detach()"),
        ("first.backward()", "first.backward(inputs=[w])"),
        ("second.backward()", "if late: second.backward()"),
        ("second.backward()", "second.backward(gradient)"),
    ],
)
def test_backwards_whose_gradients_are_used_apart_stay_apart(old: str, new: str) -> None:
    assert not shared(SHARED.replace(old, new))


def test_an_optimizer_that_steps_twice_steps_once() -> None:
    assert stepped(STEPPED)[0] == "(first + second).backward()\nopt.step()\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("second.backward()\n    opt.step()", "second.backward()\n    other.step()"),
        ("opt.zero_grad()", "other.zero_grad()"),
        ("opt.zero_grad()", "scheduler.step()"),
    ],
)
def test_steps_of_others_are_not_left_out(old: str, new: str) -> None:
    assert not stepped(dedent(STEPPED.replace(old, new)))
