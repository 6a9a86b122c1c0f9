"""What a statement, and what it runs, has to do with gradients: whether it may change places with a backward.

A backward adds to the gradients, frees its graph, and runs hooks and the backwards of custom Functions. The source has
to show that a statement neither reads nor changes any of this, with all that it calls in the program's files.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from noclobber.mend.holders.making import is_of_object, module_called
from noclobber.mend.scene import Scene, run_by
from noclobber.syntax.names import (
    UNRECORDING,
    attributes,
    call_of,
    called,
    dotted,
    is_stored,
    last_name,
    names_read,
    names_stored,
    parameters,
    targets,
)
from noclobber.syntax.tree import FUNCTION, File, functions, walk

LEAVING = (ast.Break, ast.Continue, ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await, *FUNCTION)
"""What changes its meaning, or cannot stand, in another place."""


def is_apart(scene: Scene, file: File, rows: Sequence[ast.AST]) -> bool:
    """Return True if statements, or the heads of a `with`, are known to do the same below a backward as above it."""
    ran = [one for row in rows for one in run_by(scene, row)]
    own = [one for each in scene.files for one in functions(each.tree) if not _is_of_function(each, one)]
    properties = [one for one in own if {"property", "cached_property"} & {*map(last_name, one.decorator_list)}]
    return (
        not any(one.name in ("backward", "zero_grad") for one in own)
        and not any(uses_gradients(file, one) for one in (*properties, *rows, *ran))
        and not any(attributes(one, "requires_grad", "requires_grad_") for one in (*rows, *ran))
        and not any(next(walk(one, ast.Raise, ast.Assert), None) for one in ran)
    )


def _is_of_function(file: File, method: ast.AST) -> bool:
    of = file.class_of(method)
    return of is not None and any(last_name(one) == "Function" for one in of.bases)


def uses_gradients(file: File, node: ast.AST) -> bool:
    """Return True if a statement or function reads or changes gradients, or steps, by its text."""
    names = {called(one) for one in walk(node, ast.Call) if not is_of_object(file, one)}
    given = [row for row in walk(file.tree, ast.Assign) if attributes(row.value, "grad")]
    bound = [target for row in given for target in targets(row)]
    held = {"grad"} | {one.attr for one in bound if isinstance(one, ast.Attribute)}
    if attributes(node, *held) or names_read(node) & {one.id for one in bound if isinstance(one, ast.Name)}:
        return True
    if any(one.value == "grad" for one in walk(file.tree, ast.Constant)):
        return True  # `getattr(weight, "grad")`, `attrgetter("grad")`
    return any(one in ("step", "backward") or ("grad" in one and one not in UNRECORDING) for one in names)


def runs_what_it_is_given(scene: Scene, file: File, rows: Sequence[ast.AST]) -> bool:
    """`for each in callbacks: each(loss)`, `getattr(each, name)(loss)`: whether some statements, or what they run, call
    what a variable holds. It may do anything, also with gradients."""
    ran = [one for row in rows for one in run_by(scene, row)]
    held = {one.attr for each in scene.files for one in walk(each.tree, ast.Attribute) if is_stored(each, one)}
    top = {name for row in file.tree.body if isinstance(row, ast.Assign) for name in names_stored(row)}
    for part, scope in (*((row, file.scope(row)) for row in rows), *zip(ran, ran, strict=True)):
        own = names_stored(scope) | top | {*(parameters(scope) if isinstance(scope, FUNCTION) else ())}
        for call in walk(part, ast.Call):
            if isinstance(call.func, ast.Name) and call.func.id not in own:
                continue
            if not isinstance(call.func, ast.Attribute) and not module_of(scene, call):
                return True
        if any(last_name(one.func) in held for row in walk(part, ast.Expr) if (one := call_of(row)) is not None):
            return True
    return False


def module_of(scene: Scene, call: ast.Call) -> str:
    """What makes the module that a call runs: "nn.Linear", or a class of the program's files; empty where it is none of
    these, or not known."""
    file = next((one for one in scene.files if call in one.above), None)
    made = module_called(file, call) if file is not None else None
    name = dotted(made.func) if made is not None else ""
    classes = {one.name for each in scene.files for one in walk(each.tree, ast.ClassDef)}
    return name if name.split(".")[0] in ("nn", "torch") or name in classes else ""
