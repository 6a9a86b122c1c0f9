"""Answers what an operator, a function, a module or a custom operator keeps: finds it by its name, and tries it."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from noclobber.model.reports.probe import Case, Formula, OperatorPage, Probe
from noclobber.ops import formulas
from noclobber.ops.probing import argument_names, probe, tensors_in
from noclobber.ops.samples import EVALUATION, TRAINING, Sample, samples_of
from noclobber.rules.shared.keeps import row_of
from noclobber.rules.shared.wording import node_in_words

SPACES: Mapping[str, Any] = {
    "torch": torch,
    "F": torch.nn.functional,
    "nn": torch.nn,
    "Tensor": torch.Tensor,
    "linalg": torch.linalg,
    "special": torch.special,
    "fft": torch.fft,
    "aten": torch.ops.aten,
}
"""Where a bare name is looked for, in this order, by the name that stands before the point."""
_OF_BACKENDS = ("cudnn_", "fbgemm_", "miopen_", "mkldnn_", "quantize")
"""Functions that other operators call, and that end the process where a call does not fit (torch 2.13)."""


def page_of(name: str) -> OperatorPage | None:
    """Return what an operator keeps; None if there is none of this name, or if no call of it could be made up.

    `name` is as in a program: `exp`, `relu_`, `torch.linalg.inv`, `F.gelu`, `nn.BatchNorm2d`, `mylib::my_op`.
    """
    for shown, function in _found(name.strip().removesuffix("()")):
        with _quiet():
            page = _page(shown, function)
        if page is not None:
            return page
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop warnings, those too that C++ writes to stderr itself: a trial may well use what is deprecated."""
    with warnings.catch_warnings(), open(os.devnull, "wb") as nothing:
        warnings.simplefilter("ignore")
        kept = os.dup(2)
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _found(name: str) -> Iterator[tuple[str, Any]]:
    """Yield what the name may mean."""
    if not name.isprintable():  # PyTorch takes no lone surrogate, as a byte is that is no text
        return
    if "::" in name:
        library, _, operator = name.partition("::")
        with suppress(Exception, SystemExit):  # a file of the user's own may raise anything
            importlib.import_module(library)
        function = getattr(getattr(torch.ops, library), operator.partition(".")[0], None) if library else None
        if function is not None:
            yield name, function
        return
    space, _, last = name.removeprefix("torch.").removeprefix("nn.functional.").rpartition(".")
    space = "F" if "nn.functional" in name else space.removeprefix("nn.functional")
    plain = last[:-1] if last.endswith("_") and not last.endswith("__") else last
    for prefix, holder in SPACES.items():
        if space not in ("", prefix) or (name.startswith("torch.") and not space and prefix not in ("torch", "Tensor")):
            continue
        for each in dict.fromkeys((plain, last)):
            function = getattr(holder, each, None)
            if callable(function) and not each.startswith(("__", *_OF_BACKENDS)):
                yield f"{prefix}.{each}", function


def cases_of_all() -> Iterator[Case]:
    """Yield what each function of torch and of torch.nn.functional keeps, for the table of all."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny: more threads only wait for each other
    try:
        with _quiet():
            for name in names():
                tried = (_tried(shown, function) for shown, function in _found(name))
                yield from _merged(next((cases for cases, _ in tried if cases), []))
    finally:
        torch.set_num_threads(threads)


def _page(shown: str, function: Any) -> OperatorPage | None:
    name = _own_name(shown)
    cases, seen = _tried(shown, function)
    if not cases:
        return None
    probed: dict[str, set[str]] = {}
    for node, _, kept in (by.partition(".") for one in seen for by in one.fields):
        probed.setdefault(node, set()).add(kept)
    rows = dict.fromkeys(row for node in probed if _is_of(node, name) and (row := row_of(node)) is not None)
    why = tuple(f"{row.why}; {row.free}" if row.free else row.why for row in rows)
    found = [Formula(node, text, tuple(sorted(formulas.kept_by_formula(text))), tuple(sorted(probed[node])))
             for node in probed if (text := formulas.formula_of(node))]  # fmt: skip
    notes = dict.fromkeys(note for one in seen for note in one.notes if one.differentiable)
    return OperatorPage(
        shown, torch.__version__, why, _merged(cases), _in_place(name, function), tuple(found), tuple(notes)
    )


def _own_name(shown: str) -> str:
    return shown.rpartition(".")[2] if "::" not in shown else shown


def _tried(shown: str, function: Any) -> tuple[list[Case], list[Probe]]:
    """Return what each way of calling a function keeps, and what was seen of it."""
    cases: list[Case] = []
    seen: list[Probe] = []
    for sample in samples_of(_own_name(shown), function):
        for needs, call in _needing(sample):
            try:
                result = probe(call.function, call.args, {})
            except Exception:  # no call for this subset
                continue
            if not result.differentiable and len(needs) == 1 and cases:
                continue
            seen.append(result)
            cases.append(_case(sample.call, needs, result))
    return cases, seen


def _is_of(node: str, name: str) -> bool:
    """Return True if a node is what records the operator itself, and no part of it."""
    own = name.lower().replace("_", "")
    words = re.findall(r"\w+", node_in_words(node).replace("_", ""))
    return any(re.fullmatch(rf"{re.escape(word)}(\dd)?", own) for word in words)


def _needing(sample: Sample) -> Iterator[tuple[tuple[str, ...], Sample]]:
    """Yield the call with each differentiable tensor alone requiring a gradient, then with all of them."""
    if isinstance(sample.function, torch.nn.Module):
        yield from _needing_of_module(sample, sample.function)
        return
    names = argument_names(sample.function, sample.args, {})
    named = [
        (name, id(tensor))
        for argument, value in zip(names, sample.args, strict=False)
        for name, tensor in tensors_in(value, argument)
        if tensor.is_floating_point() or tensor.is_complex()
    ]
    for subset in [*([one] for one in named), *[named] * (len(named) > 1)]:
        args = _with(sample.args, {tensor for _, tensor in subset})
        yield tuple(name for name, _ in subset), replace(sample, args=args)


def _needing_of_module(sample: Sample, module: torch.nn.Module) -> Iterator[tuple[tuple[str, ...], Sample]]:
    has_weights = any(True for _ in module.parameters())
    inputs = {id(one) for _, one in tensors_in(sample.args) if one.is_floating_point()}
    choices = [("input",), ("parameters",), ("input", "parameters")] if has_weights and inputs else []
    choices = choices or [("parameters",) if has_weights else ("input",)]
    for needs in choices:
        module.requires_grad_("parameters" in needs)
        args = _with(sample.args, inputs if "input" in needs else set())
        if "input" not in needs:
            args = tuple(one.detach() if isinstance(one, torch.Tensor) else one for one in args)
        yield needs, replace(sample, args=args)


def _with(args: tuple[Any, ...], chosen: set[int]) -> tuple[Any, ...]:
    """Return the arguments with the chosen tensors requiring a gradient."""
    given = pytree.tree_map_only(torch.Tensor, lambda one: one.detach().requires_grad_(id(one) in chosen), args)
    return tuple(given)


def _case(call: str, needs: tuple[str, ...], result: Probe) -> Case:
    kept = tuple(one.name for one in result.operands if one.kept)
    free = tuple(one.name for one in result.operands if one.free)
    return Case(call, needs, kept, free, result.own > 0)


def _merged(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Return one case for a call of which every subset keeps the same."""
    merged: list[Case] = []
    for _, group in itertools.groupby(cases, lambda one: one.call):
        rows = list(group)
        if len(rows) > 1 and len({(one.kept, one.copied) for one in rows}) == 1:
            rows = [replace(rows[-1], needs=())]
        merged += rows
    plain = [replace(one, call=one.call.removesuffix(TRAINING).removesuffix(EVALUATION)) for one in merged]
    half = len(plain) // 2
    return tuple(plain[:half] if plain and plain[:half] == plain[half:] else merged)


def _in_place(name: str, function: Any) -> tuple[Case, ...]:
    """Return what the in-place form of an operator keeps: self first, as it must be no leaf."""
    own = f"{name}_"
    twin = getattr(torch.Tensor, own, None) or getattr(torch.nn.functional, own, None)
    if isinstance(function, type) or "::" in name or twin is None:
        return ()
    cases = []
    for sample in samples_of(name, getattr(torch.ops.aten, name, function)):
        call = replace(sample, call=sample.call.replace(f"{name}(", f"{own}(", 1))
        for needs, given in _needing(call):
            tensor = given.args[0] if given.args else None
            if not isinstance(tensor, torch.Tensor):
                continue
            try:
                result = probe(twin, given.args, {})
            except Exception:  # the result does not fit, or the operator has no such form of this overload
                continue
            case = _case(call.call, needs, result)
            cases.append(replace(case, copied=result.own >= tensor.untyped_storage().nbytes()))
    return _merged(cases)


def names() -> list[str]:
    """Return the functions of torch, and those that only torch.nn.functional has, for the table of all."""
    own = [one for one in dir(torch) if _is_operator(getattr(torch, one))]
    neural = [one for one in vars(torch.nn.functional) if one[0].islower() and not one.endswith("_") and one not in own]
    neural = [one for one in neural if getattr(torch.nn.functional, one).__class__.__name__ != "module"]
    return sorted([f"torch.{one}" for one in own] + [f"F.{one}" for one in neural], key=lambda one: one.split(".")[1])


def _is_operator(function: Callable[..., Any] | Any) -> bool:
    name = getattr(function, "__name__", "_")
    return not name.startswith("_") and not name.endswith("_") and hasattr(torch.ops.aten, name)
