"""PyTorch's error texts, raised by running small programs, are each explained by one rule. This test runs PyTorch."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from noclobber.model.seen.events import Refusal
from noclobber.rules import catalogue, explain
from noclobber.rules.shared.message import explanation, rule_of_message
from noclobber.rules.shared.texts import is_in

from .messages import SAVES, WRITES, Program
from .messages_views import FUNCTIONS, ORDINARY, TRANSFORMS, VIEWS
from .texts import ORDINARY as ORDINARY_TEXTS
from .texts import paragraphs, texts

PROGRAMS = (*SAVES, *WRITES, *VIEWS, *FUNCTIONS, *TRANSFORMS)
TEXTS = texts()
REFUSALS = [(code, text) for code, text in TEXTS if code >= "NC3"]
REFUSAL_NAMES = [f"{code}-{text[:40]}" for code, text in REFUSALS]


def function(forward: Callable[..., object], **methods: Callable[..., object]) -> type[torch.autograd.Function]:
    """A custom Function of these static methods."""
    methods = {"forward": forward, "backward": lambda ctx, *gradients: gradients[0], **methods}
    return type("F", (torch.autograd.Function,), {name: staticmethod(method) for name, method in methods.items()})


def error_of(program: str) -> Exception:
    """What a program raises under bare PyTorch."""
    with torch.inference_mode():
        inferred = torch.ones(4)
    names = {
        "torch": torch,
        "nn": nn,
        "forward_ad": forward_ad,
        "function": function,
        "inferred": inferred,
        "leaf": torch.ones(4, requires_grad=True),
        "x": torch.ones(4, requires_grad=True) * 1,
        "dual": lambda: forward_ad.make_dual(torch.ones(3), torch.ones(3)),
    }
    try:
        exec(compile(program, "<program>", "exec"), names)
    except Exception as error:
        return error
    pytest.fail("the program raised nothing")


def rules_of(text: str) -> list[str]:
    """The codes of every rule that recognises a text."""
    return [rule.code for rule in catalogue() if any(is_in(one, text) for one in rule.texts)]


@pytest.mark.parametrize("program", PROGRAMS, ids=[f"{one.code}-{one.raises[:40]}" for one in PROGRAMS])
@pytest.mark.filterwarnings("ignore")
def test_a_program_raises_what_one_rule_explains(program: Program) -> None:
    text = str(error_of(program.text))
    assert program.raises in text
    assert rules_of(text) == [program.code]


@pytest.mark.parametrize(("code", "text"), TEXTS, ids=[f"{code}-{text[:40]}" for code, text in TEXTS])
def test_a_text_is_recognised_by_one_rule(code: str, text: str) -> None:
    assert rules_of(text) == [code]


@pytest.mark.parametrize(("code", "text"), REFUSALS, ids=REFUSAL_NAMES)
@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "[rank12]: ", "> "])
def test_a_text_is_recognised_inside_a_wrapped_traceback(code: str, text: str, prefix: str) -> None:
    lines = textwrap.wrap(f"RuntimeError: {text}", 40, break_on_hyphens=False)
    lines = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    x += 1", *lines, ""]
    pasted = "\n".join(prefix + line for line in lines)
    found = rule_of_message(pasted)
    assert found is not None
    assert code == found.code
    assert explanation(pasted).startswith(f"{code} {found.name}: ")


@pytest.mark.parametrize(("code", "text"), REFUSALS, ids=REFUSAL_NAMES)
def test_a_refusal_without_any_place_is_still_explained(code: str, text: str) -> None:
    found = explain(Refusal(text))
    assert found is not None
    assert (found.code, found.labels) == (code, ())
    assert found.notes
    assert found.suggestions


@pytest.mark.parametrize("program", ORDINARY)
def test_an_ordinary_error_is_nobody_s(program: str) -> None:
    text = str(error_of(program))
    assert rules_of(text) == []
    assert explain(Refusal(text)) is None


@pytest.mark.parametrize("text", paragraphs(ORDINARY_TEXTS))
def test_an_ordinary_text_is_nobody_s(text: str) -> None:
    assert rules_of(text) == []
