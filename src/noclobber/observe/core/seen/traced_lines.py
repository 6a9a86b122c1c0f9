"""Finds the line of the program behind an operator of a traced graph that torch.fx runs.

Traced code runs without the program's frames: the stack has only the call of the compiled function. The graph knows,
as text, the line that each operator was traced from.
"""

from __future__ import annotations

import gc
import linecache
import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from noclobber.model.source import Owner, is_plumbing, owner_of
from noclobber.syntax.compiling import compiled

_INTERPRETER = os.path.join("torch", "fx", "interpreter.py")
_RESUMED = r"torch_dynamo_resume_in_(\S+)_at_\d+"
"""The name of the code that torch.compile makes of the rest of a function, after a graph break."""
_LINE = re.compile(rf'^\s*File "(.+)", line (\d+), in (?:{_RESUMED}|(\S+))', re.MULTILINE)
Instruction = tuple[CodeType, int]
"""(code, instruction offset)."""


def runs_graphs(path: str) -> bool:
    """Return True for the file of `torch.fx.Interpreter`. Its `run_node` runs one operator of a graph."""
    return path.endswith(_INTERPRETER)


def instruction(frame: FrameType) -> Instruction | None:
    """Return the instruction behind a `run_node` frame, in the innermost line of the program that it was traced from.

    None for other frames, and if the graph knows no line (torch 2.10 to 2.15; tests/observe/core/test_traced.py).
    """
    if frame.f_code.co_name != "run_node":
        return None
    trace = getattr(frame.f_locals.get("n"), "stack_trace", None)
    return _behind(trace)[0]


@lru_cache(maxsize=256)
def behind(code: CodeType, number: int) -> tuple[Instruction | None, Instruction | None]:
    """Return the instruction of the program behind an instruction of a graph's code, and the library's inside its call.

    Each is None where it is not known. This searches for the graph, so it is for reports only.
    """
    return _behind(traced_from(code, number))


def _behind(trace: str | None) -> tuple[Instruction | None, Instruction | None]:
    inside: Instruction | None = None
    for path, line, resumed, function in reversed(_LINE.findall(trace or "")):
        owner = owner_of(path)
        if owner is Owner.USER:
            return _widest(path, int(line), resumed or function), inside
        if owner is Owner.LIBRARY and inside is None and not is_plumbing(path):
            inside = _widest(path, int(line), resumed or function)
    return None, inside


@lru_cache(maxsize=256)
def _widest(path: str, line: int, function: str) -> Instruction | None:
    """Return the widest instruction that starts in a line of a function; None if there is none."""
    found: list[tuple[tuple[int, int], CodeType, int]] = []
    for code in _codes(path):
        if code.co_name == function:
            for number, (start, end, column, end_column) in enumerate(code.co_positions()):
                if start == line and end is not None and column is not None and end_column is not None:
                    found.append(((end - start, end_column - column), code, 2 * number))
    return max(found, key=lambda entry: entry[0])[1:] if found else None


@lru_cache(maxsize=8)
def _codes(path: str) -> tuple[CodeType, ...]:
    try:
        module = compiled("".join(linecache.getlines(path)), path)
    except (SyntaxError, ValueError):
        return ()
    return tuple(_nested(module))


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


_FILES = "<eval_with_key>"


def is_written(path: str) -> bool:
    """Return True for the `co_filename` of code that torch.fx wrote: torch.compile runs it with the backend `eager`."""
    return path.startswith(_FILES)


def traced_from(code: CodeType, instruction: int) -> str | None:
    """Return the stack, as text, that the node at an instruction of a graph's code was traced from.

    None if the graph is gone or knows no stack. Each graph has a class of its own, whose `forward` is this code. The
    graph counts its lines from the `def` (`_lineno_map`, torch 2.10 to 2.15; tests/observe/core/test_compiled.py).
    """
    graphs: Any = sys.modules.get("torch.fx.graph_module")
    for kind in _below(graphs.GraphModule) if graphs is not None else ():
        if getattr(vars(kind).get("forward"), "__code__", None) is code:
            module: Any = next((one for one in gc.get_referrers(kind) if type(one) is kind), None)
            line = next((line for start, end, line in code.co_lines() if start <= instruction < end), None)
            if module is None or line is None:
                return None
            number = (getattr(module, "_lineno_map", None) or {}).get(line - code.co_firstlineno)
            found = (one for index, one in enumerate(module.graph.nodes) if index == number)
            return next((one.stack_trace for one in found), None)
    return None


def _below(kind: type) -> Iterator[type]:
    one: type
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)
