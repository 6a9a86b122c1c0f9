"""The code that torch.fx writes for a graph: which node each of its lines runs.

torch.compile runs it as it is with the backend `eager`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

_FILES = "<eval_with_key>"


def is_written(path: str) -> bool:
    """Return True for the `co_filename` of code that torch.fx wrote."""
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
