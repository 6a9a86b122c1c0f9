"""Make the tensor that a function under `vmap` fills from one of its arguments, so that each sample has its own.

Sound for what PyTorch refuses because a mapped value is written into a tensor that exists once. The program never got
further, and what is written stays the same.
- The tensor is made in the function, by `torch.zeros` or the like with nothing but its sizes, and no other statement
  binds the name. The new tensor has the element type that the old one had.
- The file names the function only as `torch.vmap(function)(a, b)`, which maps every argument that it gives.
"""

from __future__ import annotations

import ast

from noclobber.mend.finding import blamed
from noclobber.mend.holding import root_of
from noclobber.mend.sound import Sound
from noclobber.model.finding import Cause, Cure, Finding
from noclobber.syntax.edits import replace
from noclobber.syntax.names import called, dotted, has_stars, last_name, named
from noclobber.syntax.tree import FUNCTION, File, Function, within
from noclobber.syntax.writes import write_at

_MAKERS = ("torch.zeros", "torch.ones", "torch.empty", "torch.full")


def made_from_mapped(finding: Finding) -> Sound | None:
    """`torch.zeros(n)` as `x.new_zeros(n, dtype=torch.float32)`, of an argument `x` that is mapped."""
    place = blamed(finding)
    if place is None or finding.cause is not Cause.UNMAPPED:
        return None
    file, scope = place.file, place.file.scope(place.node)
    target = write_at(place).target
    root = root_of(target) if target is not None else None
    if not isinstance(scope, FUNCTION) or not isinstance(root, ast.Name):
        return None
    made, mapped = _made(file, scope, root.id), _mapped(file, scope)
    dtype = finding.tensor.dtype.removeprefix("torch.") if finding.tensor is not None else ""
    if made is None or mapped is None or not dtype:
        return None
    sizes = ", ".join(file.source(one) for one in made.args)
    text = f"{mapped}.new_{called(made)}({sizes}, dtype=torch.{dtype})"
    return Sound(f"make `{root.id}` from `{mapped}`, which is mapped", (replace(file, made, text),), Cure.OWN_ROWS)


def _made(file: File, scope: Function, name: str) -> ast.Call | None:
    """The call that makes the tensor of a name, where the function binds it once; None where that is not plain."""
    uses = [one for one in within(scope) if isinstance(one, ast.Name) and one.id == name]
    bound = [one for one in uses if isinstance(one.ctx, ast.Store) and not isinstance(file.above[one], ast.AugAssign)]
    binding = file.above[bound[0]] if len(bound) == 1 else None
    made = binding.value if isinstance(binding, ast.Assign) and len(binding.targets) == 1 else None
    if not isinstance(made, ast.Call) or dotted(made.func) not in _MAKERS or made.keywords or has_stars(made):
        return None
    return made if made.args else None


def _mapped(file: File, scope: Function) -> str | None:
    """The first parameter of a function that is mapped wherever the file calls it, and that it never binds again."""
    calls = [_call_of(file, one) for one in named(file.tree) if last_name(one) == scope.name]
    names = [one.arg for one in (*scope.args.posonlyargs, *scope.args.args)]
    if not calls or None in calls or not names or not all(one is not None and one.args for one in calls):
        return None
    stored = (one for one in within(scope) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
    return None if any(one.id == names[0] for one in stored) else names[0]


def _call_of(file: File, mention: ast.expr) -> ast.Call | None:
    """The call `torch.vmap(function)(a)` around a mention of the function."""
    mapping = file.above[mention]
    call = file.above[mapping]
    if not isinstance(mapping, ast.Call) or called(mapping) != "vmap" or mapping.args != [mention] or mapping.keywords:
        return None
    is_called = isinstance(call, ast.Call) and call.func is mapping and not has_stars(call)
    return call if is_called and isinstance(call, ast.Call) else None
