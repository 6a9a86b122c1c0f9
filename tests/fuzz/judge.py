"""One program run bare, watched, and with its right gradients, and what is to be said of noclobber by that.

The right gradient (DESIGN 2) is what backward gives when each save is read back with the bytes that it had when it was
saved: hooks that clone around a rewritten program in which nothing hides a save from them.
"""

from __future__ import annotations

import linecache
import re
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.autograd.graph import saved_tensors_hooks

import noclobber

NAME = "program.py"
Watch = Callable[[], AbstractContextManager[Any]]


class Outcome(Enum):
    """What became of a program. The last five are noclobber's faults."""

    QUIET = "right and quiet"
    RAISED = "raised and found"
    UNEXPLAINED = "raised for a stale save, no finding"
    REFUSED = "raised for another reason"
    SILENT = "silent and found"
    LUCKY = "lucky: a changed save was read or a wrong gradient handed on, those of the leaves are right"
    UNTAME = "not judged: huge or not finite"
    NO_ORACLE = "not judged: the right gradient could not be had"
    ESCAPE = "escape"
    FALSE_ALARM = "false alarm"
    CHANGED = "changed"
    WORDS = "raised in other words"
    BROKEN = "noclobber failed"


FAULTS = (Outcome.ESCAPE, Outcome.FALSE_ALARM, Outcome.CHANGED, Outcome.WORDS, Outcome.BROKEN)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome with a line that says why, and the codes of what was found."""

    outcome: Outcome
    why: str = ""
    codes: tuple[str, ...] = ()

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for failures that are alike: numbers and names of variables are taken out of the reason."""
        return (self.outcome, self.codes, re.sub(r"`\w+`|\d+", "", self.why)[:60])


@dataclass(slots=True)
class Run:
    """What a run left behind. `values` holds the bytes of every tensor the program has a name for."""

    error: Exception | None = None
    grads: dict[Any, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    findings: tuple[Any, ...] = ()
    failure: str = ""


_ALONE = (r"^( *)in_thread\((\w+)\)$", r"\1\2()")
"""What hooks of this thread are to see is done in this thread."""
RIGHT = (
    _ALONE,
    (r"checkpoint\((\w+), (\w+), use_reentrant=False\)", r"\1(\2)"),
    (
        r"checkpoint\((\w+), (\w+), use_reentrant=True\)",
        r"((lambda y: y.view_as(y) if y is \2 else y)(\1(\2)) if \2.requires_grad else \1(\2).detach())",
    ),
    (r"with (?:saved_tensors_hooks|save_on_cpu)\(.*\):", "if True:"),
    (r"lambda g: g\.mul_\((.*?)\)", r"lambda g: g * \1"),
    (r"return g\.mul_\((.*?)\)", r"return g * \1"),
    (r"a\.data\.mul_\((.*?)\) \* g", r"a.data * \1 * g"),
    (r"ctx\.a = a$", "ctx.a = torch.enable_grad()(a.clone)()"),
)
"""How a program is rewritten so that hooks see every save and backward writes into nothing. What a reentrant region
returns requires a gradient where its argument does, and is never that argument: a Function gives a view of it. The copy
of what a Function keeps on its ctx stays in the graph: backward with `create_graph` goes on through it."""
PLAIN_SAVES = (*RIGHT[:-1], (r"ctx\.a = a$", "ctx.save_for_backward(a)"), (r"ctx\.a\b", "ctx.saved_tensors[0]"))


IDENTITY = r"saved_tensors_hooks\(lambda s: s, lambda s: s\)"
ON_CPU = r"save_on_cpu\(\)"
"""Where everything is on the CPU already, these hooks come to the same."""


def rewritten(source: str, rewrites: tuple[tuple[str, str], ...]) -> str:
    """The source with each pattern replaced."""
    for pattern, replacement in rewrites:
        source = re.sub(pattern, replacement, source, flags=re.MULTILINE)
    return source


def run(source: str, around: Watch = nullcontext, names: dict[str, Any] | None = None) -> Run:
    """Run a program as a script, in `names` where given; `around` is entered as a user would, around all of it."""
    done = Run()
    names = {} if names is None else names
    names["__name__"] = "__main__"
    linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
    seen = None
    try:
        code = compile(source, NAME, "exec")
        torch.manual_seed(0)
        with patch.object(torch.autograd, "backward", _of_limited_depth(torch.autograd.backward)), around() as seen:
            exec(code, names)
    except Exception as error:
        done.error = error.with_traceback(None)
    done.grads = names.get("grads", {})
    if isinstance(seen, noclobber.watch):
        report = seen.report
        done.findings = tuple(one for one in report.findings if one.severity == "error")
        done.failure = ", ".join(f"{lost.way}: {lost.why}" for lost in report.coverage.lost)
    done.values = {name: _bytes(value) for name, value in names.items() if isinstance(value, torch.Tensor)}
    done.values |= {f"{name}.grad": _bytes(names[name].grad) for name in ("x", "w", "b", "k") if name in names}
    done.values |= {f"grads[{key}]": [_bytes(one) for one in row] for key, row in done.grads.items()}
    return done


def _of_limited_depth(backward: Callable[..., None]) -> Callable[..., None]:
    """A reentrant region that reads what its own result was written into runs anew for ever, in ever new threads."""
    depth = 0

    def limited(*args: Any, **kwargs: Any) -> None:
        nonlocal depth
        if depth == DEEPEST:
            raise RecursionError("a region that depends on itself")
        depth += 1
        try:
            backward(*args, **kwargs)
        finally:
            depth -= 1

    return limited


def _bytes(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    plain = tensor.detach().clone()  # makes bytes of a ZeroTensor, which has no memory
    return tuple(plain.shape), plain.dtype, tensor.requires_grad, plain.numpy(force=True).tobytes()


def _kept(saved: torch.Tensor) -> torch.Tensor:
    return saved.detach().clone()


def _other(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether other numbers are read than were saved. A zero of another sign is the same number, but not to code in
    Python, which may ask for it; of a tensor that had zeros of both signs, that can't be told from its fingerprint."""
    if _bytes(now)[-1] == _bytes(before)[-1]:
        return False
    signs = before[before == 0].signbit() if before.is_floating_point() else before
    return not torch.equal(now, before) or bool(signs.any() != signs.all())


def right_gradients(source: str) -> Run:
    """The program's right gradients. A save is copied again when it is read, as a backward may write into it."""
    return run(rewritten(source, RIGHT), lambda: saved_tensors_hooks(_kept, _kept))


def changed_saves(source: str) -> int:
    """How many saves were read with other bytes than they were saved with, seen without noclobber.

    The program is run as it is, where a checkpoint saves its inputs and its own hooks keep what they are given, with no
    other save hidden, and with none at all, where a checkpoint's region saves.
    Training batch norm keeps its running statistics, rewrites them itself and does not read them (torch 2.13).
    """
    changed = 0
    names: dict[str, Any] = {}

    def pack(saved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return _original(saved, names), saved.detach(), saved.detach().clone()

    def unpack(kept: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        nonlocal changed
        node: Any = torch._C._current_autograd_node()
        saved, alias, before = kept
        # Of its own result a node keeps the memory, of an input the tensor, wherever that lies by now.
        read = alias if saved.grad_fn is node else saved
        unread = getattr(node, "_saved_training", False) and any(
            raw.data is kept for raw in (node._raw_saved_running_mean, node._raw_saved_running_var)
        )
        in_python = isinstance(node, torch.autograd.function.BackwardCFunction)
        changed += not unread and (_bytes(read)[-1] != _bytes(before)[-1] if in_python else _other(read, before))
        # What was given the data of inference has no version counter, and the engine wants to set that of what it gets.
        return saved.clone() if saved.is_inference() else saved

    def keep(saved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return saved, saved.detach().clone()

    def give(kept: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        nonlocal changed
        changed += _other(*kept)
        return kept[0]

    identity = IDENTITY if "device=" in source else f"{IDENTITY}|{ON_CPU}"
    seen_through = rewritten(source, (_ALONE, (identity, "saved_tensors_hooks(keep, give)")))
    native = torch.autograd._engine_run_backward

    def retaining(outputs: Any, gradients: Any, _: bool, *args: Any, **kwargs: Any) -> Any:
        return native(outputs, gradients, True, *args, **kwargs)

    for form in (seen_through, rewritten(source, (_ALONE, *PLAIN_SAVES[3:])), rewritten(source, PLAIN_SAVES)):
        names = {"keep": keep, "give": give}
        # What a Function keeps on its ctx outlives a backward; where it is saved instead, its graph has to.
        with patch.object(torch.autograd, "_engine_run_backward", retaining if "ctx.a = a" in source else native):
            run(form, lambda: saved_tensors_hooks(pack, unpack), names)
    return changed + changed_recomputations(source)


def _original(saved: torch.Tensor, names: dict[str, Any]) -> torch.Tensor:
    """The tensor that PyTorch keeps: without hooks, backward with `create_graph` saves an input that it has read back
    as that very input, not as what hooks gave; a result of the node that runs it saves as another tensor."""
    node = torch._C._current_autograd_node()
    if node is None or saved.grad_fn is node:
        return saved
    tensors = [one for one in names.values() if isinstance(one, torch.Tensor)]
    return next((one for one in tensors if _lies_at(one) == _lies_at(saved)), saved)


def _lies_at(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.requires_grad


def changed_recomputations(source: str) -> int:
    """How many saves of checkpointed regions were read when running the region anew would have saved other bytes.

    A reentrant one has saved nothing in forward: what it then returned is compared as well, and what else than its
    argument that leads back to.
    """
    changed = 0

    def checkpoint(region: Callable[[Any], Any], given: torch.Tensor, use_reentrant: bool) -> Any:
        random, first, moved = _random_states(), list[torch.Tensor](), False

        def saves() -> list[torch.Tensor]:
            nonlocal moved
            again, here = list[torch.Tensor](), _random_states()
            _draw_from(random)
            hooks = saved_tensors_hooks(lambda saved: again.append(_kept(saved)), lambda at: None)
            begun, mine = _next_node(), given.detach().requires_grad_(given.requires_grad)
            try:
                with torch.enable_grad(), hooks:
                    result = region(mine)
                if use_reentrant:
                    again.append(_kept(result))
                    moved |= _ways_out(result, {mine, given}, begun) != out
            finally:
                _draw_from(here)
            return again

        def pack(saved: torch.Tensor) -> int:
            first.append(_kept(saved))
            return len(first) - 1

        def unpack(at: int) -> torch.Tensor:
            nonlocal changed
            again = saves()
            before = [*first, *returned]
            changed += moved or len(again) != len(before) or any(map(_other, again, before))
            return first[at]

        begun = _next_node()
        with saved_tensors_hooks(pack, unpack):
            result = region(given)
        returned = [_kept(result)] if use_reentrant else []
        out = _ways_out(result, {given}, begun)
        return result

    for which in (r"use_reentrant=False", r"use_reentrant=\w+"):
        run(re.sub(rf"\bcheckpoint\((.*{which})", r"rerun(\1", source), names={"rerun": checkpoint})
    return changed


def _ways_out(result: torch.Tensor, given: set[torch.Tensor], first: int) -> set[int]:
    """Where the part of a graph that begins with node `first` leads, but for what it is given."""
    nodes, met, out = [result.grad_fn], {one.grad_fn for one in given}, set[int]()
    while nodes:
        node = nodes.pop()
        if node is None or node in met:
            continue
        met.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            out.update([id(leaf)] if leaf not in given else [])
        elif node._sequence_nr() < first:
            out.add(node._sequence_nr())
        else:
            nodes.extend(following for following, _ in node.next_functions)
    return out


def _next_node() -> int:
    with torch.enable_grad():
        return int(torch.zeros((), requires_grad=True).clone().grad_fn._sequence_nr()) + 1


def _random_states() -> list[tuple[Any, torch.Tensor]]:
    """The states of the CPU's random numbers and of the accelerator's."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    places = [torch] if accelerator is None else [torch, torch.get_device_module(accelerator)]
    return [(place, place.get_rng_state()) for place in places]


def _draw_from(states: list[tuple[Any, torch.Tensor]]) -> None:
    for place, state in states:
        place.set_rng_state(state)


def changed_gradients(source: str) -> int:
    """How many tensors that the program has a name for get another gradient than is right in some backward."""
    bare, right = delivered(source), delivered(rewritten(source, RIGHT), lambda: saved_tensors_hooks(_kept, _kept))
    pairs = (pair for name in bare.keys() & right.keys() for pair in zip(bare[name], right[name], strict=False))
    return sum(not torch.allclose(one, other, 1e-9, 1e-12, equal_nan=True) for one, other in pairs)


def delivered(source: str, around: Watch = nullcontext) -> dict[str, list[torch.Tensor]]:
    """The gradients that reach each tensor that the program has a name for, as copies, in order."""
    names: dict[str, Any] = {}
    got: dict[str, list[torch.Tensor]] = {}
    native = torch.autograd._engine_run_backward

    def engine(*args: Any, **kwargs: Any) -> Any:
        hooks = []
        for name, tensor in list(names.items()):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad and not tensor.is_leaf:
                edge = torch.autograd.graph.get_gradient_edge(tensor)
                keep = partial(_keep, got.setdefault(name, []), edge.output_nr)
                hooks.append(edge.node.register_prehook(keep))
        try:
            return native(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()

    with patch.object(torch.autograd, "_engine_run_backward", engine):
        run(source, around, names)
    return got


def _keep(kept: list[torch.Tensor], output: int, gradients: tuple[torch.Tensor | None, ...]) -> None:
    gradient = gradients[output]
    if gradient is not None:
        kept.append(gradient.detach().clone())


STALE = "variables needed for gradient computation has been modified by an inplace operation"
HUGE = 1e8
DEEPEST = 50
"""Backward calls within each other."""


def _rows(bare: Run, right: Run) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """The gradients that both runs have, by name; none at all is zero."""
    rows = []
    for key in bare.grads.keys() & right.grads.keys():
        for i, (one, other) in enumerate(zip(bare.grads[key], right.grads[key], strict=True)):
            if one is not None or other is not None:
                one = torch.zeros_like(other) if one is None else one.detach()
                rows.append((f"grads[{key}][{i}]", one, torch.zeros_like(one) if other is None else other.detach()))
    return rows


def wrong_gradient(bare: Run, right: Run) -> str:
    """The name of the first gradient that differs by more than rounding; empty where all are right."""
    for name, one, other in _rows(bare, right):
        if not bool(((one - other).abs() <= 1e-9 * other.abs().max() + 1e-12).all()):
            return name
    return ""


def untame(bare: Run, right: Run, huge: float = HUGE) -> bool:
    """Whether a gradient of either run is huge or not finite."""
    return any(not bool((g.abs() < huge).all()) for _, *both in _rows(bare, right) for g in both)


def first_line(error: Exception | None) -> str:
    """What an error says, without what follows."""
    return str(error).partition("\n")[0]


def unlike(source: str, one: Run, other: Run) -> list[str]:
    """The names whose values differ, in a single bit.

    Where a program is on a device and on the CPU, threads of both run its backward, and chance says which adds to a
    gradient first: there rounding makes no difference (tests/device/test_random_programs.py).
    """
    rounded = 'device="' in source and ".cpu()" in source
    return [name for name, value in one.values.items() if not _alike(value, other.values[name], rounded)]


def _alike(one: Any, other: Any, rounded: bool) -> bool:
    if one == other or not rounded or None in (one, other):
        return bool(one == other)
    if isinstance(one, list):
        return all(_alike(*pair, rounded) for pair in zip(one, other, strict=True))
    (*form, data), (*its_form, its) = one, other
    if form != its_form or not one[1].is_floating_point:
        return False
    here, there = (torch.frombuffer(bytearray(each), dtype=one[1]) for each in (data, its))
    return torch.allclose(here, there, 1e-9, 1e-12, equal_nan=True)


def _difference(source: str, bare: Run, watched: Run) -> Verdict | None:
    """What is not the same under watch; None where everything is."""
    if bare.error is not None and watched.error is not None:
        kind = RuntimeError if isinstance(watched.error, noclobber.ClobberError) else type(watched.error)
        why = f"raises {first_line(watched.error)}, bare {type(bare.error).__name__} {first_line(bare.error)}"
        if kind is not type(bare.error):
            return Verdict(Outcome.CHANGED, why)
        if first_line(bare.error) != first_line(watched.error):
            return Verdict(Outcome.WORDS, why)
    if bare.values.keys() != watched.values.keys():
        return Verdict(Outcome.CHANGED, f"names {bare.values.keys() ^ watched.values.keys()}")
    changed = unlike(source, bare, watched)
    return Verdict(Outcome.CHANGED, f"`{changed[0]}`") if changed else None


def watch() -> noclobber.watch:
    """What is judged."""
    return noclobber.watch()


def judge(source: str, around: Watch = watch) -> Verdict:
    """Run a program three ways, or four where a right gradient has findings, and compare."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bare, watched = run(source), run(source, around)
        codes = tuple(sorted({one.code for one in watched.findings}))
        if watched.failure:
            return Verdict(Outcome.BROKEN, watched.failure, codes)
        if bare.error is not None and watched.error is None:
            return Verdict(Outcome.ESCAPE, f"runs on; bare raises {first_line(bare.error)}", codes)
        right = right_gradients(source)
        wrong = wrong_gradient(bare, right)
        if bare.error is None and watched.error is not None:
            if wrong and codes:
                return Verdict(Outcome.SILENT, wrong, codes)
            return Verdict(Outcome.CHANGED, f"raises; bare does not: {first_line(watched.error)}", codes)
        if difference := _difference(source, bare, watched):
            return replace(difference, codes=codes)
        if bare.error is None and right.error is not None:
            return Verdict(Outcome.NO_ORACLE, str(right.error), codes)
        if wrong and untame(bare, right):
            return Verdict(Outcome.UNTAME, wrong, codes)
        raised = getattr(watched.error, "findings", ())
        silent = [one for one in watched.findings if all(one.identity() != other.identity() for other in raised)]
        if wrong:
            return Verdict(Outcome.SILENT if silent else Outcome.ESCAPE, f"wrong {wrong}", codes)
        if bare.error is not None:
            if STALE in str(bare.error):
                return Verdict(Outcome.RAISED if codes else Outcome.UNEXPLAINED, first_line(bare.error), codes)
            return Verdict(Outcome.REFUSED, first_line(bare.error), codes)
        if not codes:
            return Verdict(Outcome.QUIET)
        if untame(bare, right):
            return Verdict(Outcome.UNTAME, "", codes)
        lucky = changed_saves(source) or changed_gradients(source)
        return Verdict(Outcome.LUCKY if lucky else Outcome.FALSE_ALARM, "", codes)
