"""The line of the program that an operator of a traced graph stands for, while torch.fx runs the graph.

What a compiler has traced runs without the program's frames: on the stack there is only the call of the compiled
function. The graph knows for each operator the line that it was traced from, as text.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType

from noclobber.model.source import Owner, owner_of

_INTERPRETER = os.path.join("torch", "fx", "interpreter.py")
_LINE = re.compile(r'^\s*File "(.+)", line (\d+), in (\S+)', re.MULTILINE)
Instruction = tuple[CodeType, int]
"""(code, instruction offset)."""


def runs_graphs(path: str) -> bool:
    """Whether a file is that of `torch.fx.Interpreter`, whose `run_node` runs one operator of a graph."""
    return path.endswith(_INTERPRETER)


def instruction(frame: FrameType) -> Instruction | None:
    """The instruction that a `run_node` stands for: of the innermost line of the program that it was traced from.

    None in other frames, and where the graph tells nothing (torch 2.10 to 2.15; tests/observe/core/test_traced.py).
    """
    if frame.f_code.co_name != "run_node":
        return None
    trace = getattr(frame.f_locals.get("n"), "stack_trace", None)
    for path, line, function in reversed(_LINE.findall(trace or "")):
        if owner_of(path) is Owner.USER:
            return _widest(path, int(line), function)
    return None


@lru_cache(maxsize=256)
def _widest(path: str, line: int, function: str) -> Instruction | None:
    """The instruction of a function that spans most of the statement that starts in a line."""
    found: list[tuple[tuple[int, int], CodeType, int]] = []
    for code in _codes(path):
        if code.co_name == function:
            for number, (start, end, column, end_column) in enumerate(code.co_positions()):
                if start == line and end is not None and column is not None and end_column is not None:
                    found.append(((end - start, end_column - column), code, 2 * number))
    return max(found, key=lambda one: one[0])[1:] if found else None


@lru_cache(maxsize=8)
def _codes(path: str) -> tuple[CodeType, ...]:
    try:
        module = compile("".join(linecache.getlines(path)), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return ()
    return tuple(_nested(module))


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _nested(one)
