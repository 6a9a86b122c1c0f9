"""Make the tensor that a function under `vmap` fills from one of its arguments, so that each sample has its own.

Sound for what PyTorch refuses because a mapped value is written into a tensor that exists once: the program never got
further, and what is written stays the same. The tensor is made in the function, by `torch.zeros` or the like with
nothing but its sizes, and no other statement binds the name; the new tensor has the element type that the old one had.
The file names the function only as `torch.vmap(function)(a, b)`, which maps every argument that it gives.

Tried is any maker of a tensor that is written under `vmap`, from each argument of the function.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.change import Change
from noclobber.mend.scene import Scene
from noclobber.model.finding import Cause, Cure
from noclobber.syntax.edits import replace
from noclobber.syntax.names import called, definition, dotted, has_stars, is_stored, mentions, parameters, uses
from noclobber.syntax.tree import FUNCTION, File, Scope, walk
from noclobber.syntax.writes import WriteSyntax

_MAKERS = ("torch.zeros", "torch.ones", "torch.empty", "torch.full")


def made_from_mapped(scene: Scene) -> Iterator[Change]:
    """`torch.zeros(n)` as `x.new_zeros(n)`, of an argument `x` that is mapped."""
    for write in scene.writes() if scene.is_refused else ():
        file, scope, name = write.file, write.file.scope(write.statement), write.name
        made = definition(file, write.base, write.statement)
        is_under = scene.is_mapped or mentions(file, "vmap")
        if not isinstance(made, ast.Call) or dotted(made.func) not in _MAKERS or not is_under:
            continue
        own = parameters(scope)
        maker, dtype = f"new_{called(made)}", scene.finding.tensor.dtype if scene.finding.tensor else ""
        is_known = scene.finding.cause is Cause.UNMAPPED and _is_plain(file, scope, made, name)
        if is_known and dtype and _maps(file, scope):
            sizes = ", ".join(file.source(one) for one in made.args)
            text = f"{own[0]}.{maker}({sizes}, dtype=torch.{dtype.removeprefix('torch.')})"
            title = f"make `{name}` from `{own[0]}`, which is mapped"
            yield Change(title, (replace(file, made, text),), 1, Cure.OWN_ROWS, is_sound=True)
        for argument in dict.fromkeys([*_named_in(write, own), *own]):
            title = f"make `{name}` from `{argument}`, which is mapped"
            yield Change(title, (replace(file, made.func, f"{argument}.{maker}"),), 1, Cure.OWN_ROWS)


def _named_in(write: WriteSyntax, names: list[str]) -> list[str]:
    """Those of some names that stand in what is written."""
    value = write.call if write.call is not None else getattr(write.statement, "value", None)
    return [one.id for one in walk(value, ast.Name) if one.id in names] if value is not None else []


def _is_plain(file: File, scope: Scope, made: ast.Call, name: str) -> bool:
    """Return True if the tensor is made of its sizes alone, and nothing else binds its name."""
    stored = [one for one in uses(scope, name) if is_stored(file, one)]
    return len(stored) == 1 and bool(made.args) and not made.keywords and not has_stars(made)


def _maps(file: File, scope: Scope) -> bool:
    """Return True if the first parameter of a function is mapped wherever the file calls it, and is never bound
    again."""
    if not isinstance(scope, FUNCTION) or not (own := parameters(scope)):
        return False
    named, again = mentions(file, scope.name), any(is_stored(file, one) for one in uses(scope, own[0]))
    return bool(named) and not again and all(_is_mapped(file, one) for one in named)


def _is_mapped(file: File, mention: ast.expr) -> bool:
    """`torch.vmap(function)(a)` around a mention of the function."""
    mapping = file.above[mention]
    call = file.above[mapping]
    if not isinstance(mapping, ast.Call) or called(mapping) != "vmap" or mapping.args != [mention] or mapping.keywords:
        return False
    return isinstance(call, ast.Call) and call.func is mapping and bool(call.args) and not has_stars(call)
