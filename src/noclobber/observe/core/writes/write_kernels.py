"""Which operators have kernels: those that write, and a few more. They lie on a spare dispatch key.

All operators are looked at once, and from then on each new one alone.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from sys import getrefcount
from typing import Any

import torch

from noclobber.model.reports.error import UnsupportedTorch
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.context import Context
from noclobber.observe.core.seen.written import NUMBERS_AS_TENSORS, RECURRENT, Written, makes_many_views, written_by
from noclobber.observe.core.writes import kernel_functions
from noclobber.observe.core.writes.kernel_functions import Before
from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.dispatch import modes, registry, spare_key

_known: set[str] = set()
"""The operators that were looked at."""
_foreign: dict[str, torch.FunctionSchema] = {}
"""The schemas of those that are not PyTorch's own. When a library is gone, another may define the name differently."""
_libraries: dict[str, Any] = {}
kernels: list[tuple[str, str]] = []
"""The overloads that have a kernel, as ("aten", "add_.Tensor")."""
_scanned: tuple[int, ...] = ()
_scanning = threading.Lock()
"""Held by the thread that looks for new names."""
_enroll: Callable[[str, Written | str], object] | None = None


def take_first(enroll: Callable[[str, Written | str], object]) -> None:
    """Let the native part take the calls of operators that it can take, from the first registration on.

    `enroll` is called with the name of an overload and with what it writes, its short name if it returns several
    views, or "" if its inner writes are not to be seen. The kernels written in Python then lie on the next key below,
    where the native ones pass calls on to them.
    """
    global _enroll
    _enroll = enroll


def connect(context: Context, before: Before) -> None:
    """Call `before` at each write. Register kernels for all overloads that have none yet (0.1 s at first).

    The kernels stay registered for the life of the process. A thread that was not entered (threads.py) never reaches
    them, and PyTorch's dispatch is as fast as before (measured: +0 ns).
    """
    kernel_functions.tell((context, before))
    if "_" not in _libraries:
        with _unwarned():
            _libraries["_"] = registry.lasting("_")
            _libraries["_"].fallback(spare_key.KEY_NAME, torch.library.fallthrough_kernel, False)
            spare_key.let_through()
    for name in tuple(_foreign):
        look_at(name)
    scan()


def arm(_: Context, way: Way) -> None:
    """Look at each operator that is defined from now on, or that `torch.ops` is asked for the first time: it may come
    from an extension that was imported. Look for all after `torch.ops` has loaded a library."""
    all_of_one = private.lookup("_ops._OpNamespace")
    way.after(torch.library.Library, "define", _defined)
    way.after(type(torch.ops), "load_library", lambda *_, **__: scan())
    way.after(all_of_one, "__getattr__", lambda found, *_: list(map(look_at, registry.names_of(found))))


def _defined(_: object, library: Any, schema: str, *__: object, **___: object) -> None:
    look_at(f"{library.ns}::{schema.partition('(')[0].rpartition('::')[2].strip()}")


def scan() -> None:
    """Look at the operators that nobody has told of, if there may be any.

    Asking for all names takes 3 ms, which is too much for a `watch` around each step.
    """
    global _scanned
    now = registry.operators_may_have_changed()
    if now == _scanned or not _scanning.acquire(blocking=False):
        return
    try:
        _scanned = now
        for name in registry.operator_names():
            if name not in _known:
                look_at(name)
    finally:
        _scanning.release()


def look_at(name: str) -> None:
    """Register the kernel that an operator needs, if it was not looked at before, or has another schema than then."""
    is_known, before = name in _known, _foreign.get(name)
    if is_known and before is None:
        return
    schema = registry.schema(name)
    if schema is None or (before is not None and before == schema):
        return
    _known.add(name)
    if kernel_functions.is_foreign(name.partition("::")[0]):
        _foreign[name] = schema
    with _unwarned() if is_known else nullcontext():  # PyTorch warns of a kernel that takes the place of another
        _register(name, schema, replaces=is_known)


def _unwarned() -> warnings.catch_warnings[None]:
    """Hide warnings for a block. Not to be used often: it makes Python forget which warnings it has shown."""
    return warnings.catch_warnings(action="ignore")


def _register(name: str, schema: torch.FunctionSchema, *, replaces: bool) -> None:
    namespace, _, rest = name.partition("::")
    written, compared = written_by(schema), False
    kernel: Callable[..., object]
    if written is not None:
        kernel = kernel_functions.writing(name, written)
    elif makes_many_views(schema):
        kernel = kernel_functions.passing(registry.overload(name), schema.name)
    elif name in NUMBERS_AS_TENSORS or schema.name in RECURRENT:
        kernel = kernel_functions.passing(registry.overload(name))
    elif compared := kernel_functions.is_foreign(namespace):
        kernel = kernel_functions.comparing(registry.handle(name), schema.name)
    else:
        return
    library = _libraries.get(namespace) or _libraries.setdefault(namespace, registry.lasting(namespace))
    native = _enroll is not None and not compared and _is_usual(schema, written)
    library.impl(rest, spare_key.LOWER_KEY_NAME if native else spare_key.KEY_NAME, kernel, compared)
    if native and _enroll is not None:
        _enroll(name, written or (schema.name if makes_many_views(schema) else ""))
    if not replaces:
        kernels.append((namespace, rest))


_TAKEN = ("Tensor", "Optional[Tensor]", "List[Tensor]")
"""The types of written arguments that the native part can take."""


def _is_usual(schema: torch.FunctionSchema, written: Written | None) -> bool:
    """Return True if the native part can take the calls: it writes tensors and lists of tensors, and no more."""
    if written is None:
        return True
    types = (str(schema.arguments[position].type) for position, _ in written.arguments)
    return written.fills is None and written.op != "aten::set_" and all(one in _TAKEN for one in types)


def _tried(context: Context, before: Before, run: Callable[[], object]) -> None:
    """Run operators with `before` called at each write, unseen by the program's modes, and tell nobody else of them."""
    told = kernel_functions.told()
    connect(context, before)
    with modes.no_modes(), modes.plain(), torch.inference_mode(False):  # modes may make other tensors of these
        spare_key.set_key(True)
        try:
            run()
        finally:
            spare_key.set_key(False)
            kernel_functions.tell(told)


@cache
def test(context: Context) -> None:
    """Raise UnsupportedTorch if a kernel on the spare key sees no `add_`. A self-test, run once in a process."""
    seen: list[str] = []
    _tried(context, lambda written, tensor: seen.append(written.op), lambda: torch.zeros(1, device="cpu").add_(1))
    if "aten::add_" not in seen:
        raise UnsupportedTorch(f"torch {torch.__version__} calls no kernel on its dispatch key {spare_key.KEY_NAME}")


@cache
def references_of_new(context: Context) -> int:
    """Return how many references a Before finds to a tensor that an operator has made itself and writes to; -1
    if no such call is seen. A tensor that anything in Python holds has more. It is counted once in a process."""
    counts: list[int] = []

    def count(written: Written, tensor: torch.Tensor) -> None:
        if spare_key.below_versions() and type(tensor) is torch.Tensor:
            counts.append(getrefcount(tensor))

    def add() -> None:
        one = torch.zeros(1, 1, device="cpu", dtype=torch.float32)
        torch.nn.functional.linear(one, one, one[0])  # copies its bias into the result

    _tried(context, count, add)
    return min(counts, default=-1)
