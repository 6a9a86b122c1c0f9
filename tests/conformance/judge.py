"""What differs between a program under bare PyTorch and under each of noclobber's modes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from noclobber.observe.torch_api.autograd import hook_stack
from tests.conformance.observed import MODES, Program, Run, Warned, right, run

TRIES = 4
"""Bare runs, until two in a row agree: the first may fill caches, and so warn of what the others don't."""
STALE = "variables needed for gradient computation has been modified by an inplace operation"


class Difference(NamedTuple):
    """`kind` is the aspect that differs ("bits", "version", "warnings"); `what` shows both sides."""

    program: str
    mode: str
    kind: str
    what: str


class Verdict(NamedTuple):
    """`compared` counts what was, `unsettled` what bare PyTorch itself does not do twice."""

    differences: list[Difference]
    compared: int = 0
    unsettled: int = 0


def judge(program: Program, modes: Mapping[str, Any] = MODES) -> Verdict:
    """Run a program bare until it does the same twice, with its right gradients, and in each mode; compare."""
    bare, settled = settled_run(program)
    if "outcome" not in settled:
        return Verdict([], unsettled=len(bare.values))
    oracle = run(program, right)
    differences = []
    for mode, around in modes.items():
        found = differences_of(program, mode, bare, run(program, around), oracle, settled)
        differences += [Difference(program.name, mode, kind, what) for kind, what in found]
    return Verdict(differences, len(settled), len(bare.values) + 2 - len(settled))


def settled_run(program: Program) -> tuple[Run, set[str]]:
    """A bare run, and the names of what was the same in the one before it, with other bytes in memory never written."""
    last, poison = run(program, nullcontext), 0xA5
    for _ in range(TRIES):
        bare = run(program, nullcontext, poison)
        same = {name for name in bare.values.keys() & last.values.keys() if bare.values[name] == last.values[name]}
        same |= {"outcome"} if bare.error == last.error else set()
        same |= {"warnings"} if bare.warnings == last.warnings else set()
        if len(same) == len(bare.values) + 2:
            break
        last, poison = bare, poison ^ 0xFF
    return bare, same


def differences_of(
    program: Program, mode: str, bare: Run, got: Run, oracle: Run, settled: set[str]
) -> Iterator[tuple[str, str]]:
    """Each as its kind and both sides."""
    wrong = {name for name in settled if name.startswith("bits") and bare.values[name] != oracle.values.get(name)}
    if got.failure:
        yield "noclobber failed", got.failure
    if mode == "preserve":
        bare, settled = _preserved(bare, oracle, settled, wrong)
    if bare.error != got.error:
        yield "outcome", f"bare {_worded(bare)}, here {_worded(got)}"
        return  # what comes after is not there
    if "warnings" in settled and bare.warnings != got.warnings and not _are_of_aliases(bare.warnings, got.warnings):
        yield "warnings", f"bare {_short(bare.warnings)}, here {_short(got.warnings)}"
    for name in sorted(settled - {"outcome", "warnings"}):
        one, other = bare.values[name], got.values.get(name)
        if one != other and not _is_added_out_of_place(name, one, other):
            yield name.partition(" of ")[0], f"{name}: bare {_short(one)}, here {_short(other)}"
    if got.findings and not wrong and bare.error is None and not program.writes:
        yield "false finding", "; ".join(got.findings)
    if wrong and not got.findings and bare.error is None and mode == "contents":
        yield "no finding", f"wrong: {', '.join(sorted(wrong))}"


def _preserved(bare: Run, oracle: Run, settled: set[str], wrong: set[str]) -> tuple[Run, set[str]]:
    """What `preserve` is to give: the right gradients, where bare PyTorch gives wrong ones or refuses to give any."""
    if bare.error is not None and STALE in bare.error[1]:
        return oracle, {"outcome", *(name for name in oracle.values if name.startswith("bits"))}
    right = {name: oracle.values[name] for name in wrong if name in oracle.values}
    return replace(bare, values=bare.values | right), settled


# What cannot hold, each with its reason; the README says the same in "What it costs, and what it can't see".


def _are_of_aliases(bare: list[Warned], got: list[Warned]) -> bool:
    """Whether the same is warned of, but more often: also for the detached alias that noclobber keeps of each save.

    PyTorch does so only where it is told to warn each time (`torch.set_warn_always`), as here. Such a warning blames
    the line of the program that saves.
    """
    left, texts = iter(got), {one.text for one in bare}
    return all(one in left for one in bare) and all(one.text in texts for one in got)


def _is_added_out_of_place(name: str, bare: Any, got: Any) -> bool:
    """Whether this is a gradient whose version did not move, in a process where hooks may run in a backward.

    There noclobber looks at every write, and a tensor that Python code has seen is not added to in place by PyTorch
    (torch 2.13): the sum is a new tensor, of the same bits.
    """
    is_lower = name.startswith("version") and "gradient" in name and got is not None and got < bare
    return is_lower and hook_stack.program_has_hooks()


def _worded(run: Run) -> str:
    return "returns" if run.error is None else f"raises {': '.join(run.error)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]} ..."
