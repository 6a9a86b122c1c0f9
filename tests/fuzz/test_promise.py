"""No gradient is silently wrong, no right program is accused, nothing changes: random programs, each run three ways."""

import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import preserved
from tests.fuzz.judge import FAULTS, Outcome, judge
from tests.fuzz.programs import programs, random_program, weighted
from tests.fuzz.statements import KINDS, TABLES

MANY = 100


def verdict_of(program):
    verdict = judge(program)
    assert verdict.outcome not in FAULTS, f"{verdict.outcome.value} {verdict.codes} {verdict.why}\n{program}"
    return verdict.outcome


@settings(max_examples=MANY, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_the_promise(program):
    verdict_of(program)


def test_the_promise_on_longer_programs():
    outcomes = Counter(verdict_of(random_program(f"test-{number}")) for number in range(MANY))
    assert len(outcomes) > 4, outcomes
    assert max(outcomes.values()) < 0.95 * MANY, outcomes


def test_gradients_are_right_under_preserve():
    """But for those that a hook writes into: they are no saves."""
    outcomes = Counter[Outcome]()
    for number in range(MANY):
        program = random_program(f"preserve-{number}", ("hook", "grad write"))
        verdict = preserved.judge(program)
        assert verdict.outcome not in FAULTS, f"{verdict.outcome.value} {verdict.why}\n{program}"
        outcomes[verdict.outcome] += 1
    assert outcomes[Outcome.QUIET] > 0.8 * MANY, outcomes


@given(st.integers(0, 2**32))
@settings(max_examples=20, derandomize=True, deadline=None)
def test_a_seed_is_a_program(number):
    assert random_program(str(number)) == random_program(str(number))


def test_every_kind_of_statement_is_written():
    texts = [random_program(f"kinds-{number}") for number in range(1500)]
    body = "\n".join(text.partition("for p in (x, w, b, k)]")[2] for text in texts)
    marks = {
        "no_grad": "torch.no_grad():",
        "inference": "torch.inference_mode():",
        "thread": "in_thread(task",
        "saved hooks": "saved_tensors_hooks(",
        "checkpoint": "use_reentrant=False",
        "reentrant": "use_reentrant=True",
        "backward": ".backward(retain_graph=True)",
        "grad": "allow_unused=True, retain_graph=True",
        "penalty": "create_graph=True",
    }
    written = {kind: mark in body for kind, mark in marks.items()}
    for kind, (_, templates) in TABLES.items():
        pieces = [max(re.split(r"{+\w*}+", template), key=len) for template in templates]
        written[kind] = sum(piece in body for piece in pieces) > 0.8 * len(pieces)
    assert set(written) == set(KINDS)
    assert all(written.values()), written


def test_there_are_many_operators():
    assert sum(len(templates) for _, templates in TABLES.values()) > 200


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_can_be_left_out(kind):
    assert kind not in weighted([kind])
    assert len(set(weighted([kind]))) == len(KINDS) - 1
