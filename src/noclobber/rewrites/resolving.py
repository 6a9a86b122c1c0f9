"""What a call calls: the module that a name is bound to, or a function of the file."""

from __future__ import annotations

import ast

from noclobber.rewrites.code import File, within
from noclobber.rules.shared.rewriting import called, source_name

_SPIES = ("register_forward", "register_module_forward")
"""What lets a program get hold of what any module is given and gives."""
_PLAIN = ("staticmethod", "no_grad", "enable_grad")
"""Decorators that leave a function what it is."""


def module_called(file: File, call: ast.Call) -> ast.Call | None:
    """`nn.Linear(2, 3)` for `self.fc(x)`, where the class binds `self.fc` to that once and to nothing else; the same
    for a name of the function or the module."""
    return None if any(spy in file.text for spy in _SPIES) else bound_to(file, call.func, call)


def bound_to(file: File, callee: ast.expr, where: ast.AST) -> ast.Call | None:
    """The call that a name, or an attribute of `self`, is bound to once and for all; None where that is not plain."""
    if isinstance(callee, ast.Attribute) and isinstance(callee.value, ast.Name) and callee.value.id == "self":
        around = file.class_of(where)
        bound = [] if around is None else [one for one in ast.walk(around) if _binds(one, callee)]
    elif isinstance(callee, ast.Name):
        bound = [one for one in within(file.scope(where)) if _binds(one, callee)]
        bound = bound or [one for one in within(file.tree) if _binds(one, callee)]
    else:
        return None
    found = bound[0] if len(bound) == 1 else None
    value = found.value if isinstance(found, (ast.Assign, ast.AnnAssign)) else None
    target = found.targets[0] if isinstance(found, ast.Assign) else None
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        value = next(one for to, one in zip(target.elts, value.elts, strict=True) if _is(to, callee))
    elif isinstance(target, ast.Tuple):
        value = None
    return value if isinstance(value, ast.Call) else None


def function_called(file: File, call: ast.Call) -> ast.FunctionDef | None:
    """The function of the file that a call runs: by its name, a method of `self`, the `forward` of a module of the
    file, or that of an `autograd.Function` that is applied."""
    found: list[ast.FunctionDef] = []
    if isinstance(call.func, ast.Name) and bound_to(file, call.func, call) is None:
        found = _functions(file.tree, call.func.id)
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "apply":
        found = _functions(_class(file, source_name(call.func.value)), "forward")
    elif isinstance(call.func, ast.Attribute) and source_name(call.func.value) == "self":
        found = _functions(file.class_of(call), call.func.attr)
    made = module_called(file, call)
    if not found and made is not None:
        found = _functions(_class(file, called(made)), "forward")
    if len(found) != 1 or not all(any(name in ast.unparse(one) for name in _PLAIN) for one in found[0].decorator_list):
        return None
    return found[0]


def forward_of(file: File, name: str) -> ast.FunctionDef | None:
    """The `forward` of a class of the file."""
    found = _functions(_class(file, name), "forward")
    return found[0] if len(found) == 1 and not found[0].decorator_list else None


def _class(file: File, name: str) -> ast.ClassDef | None:
    found = [one for one in file.tree.body if isinstance(one, ast.ClassDef) and one.name == name]
    return found[0] if len(found) == 1 else None


def _functions(around: ast.Module | ast.ClassDef | None, name: str) -> list[ast.FunctionDef]:
    rows = around.body if around is not None else []
    return [one for one in rows if isinstance(one, ast.FunctionDef) and one.name == name]


def _binds(node: ast.AST, name: ast.Attribute | ast.Name) -> bool:
    """Whether a node binds a name, by whatever kind of statement."""
    if isinstance(node, ast.Assign):
        return any(_is(one, name) for target in node.targets for one in ast.walk(target))
    if isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For, ast.NamedExpr, ast.comprehension)):
        return any(_is(one, name) for one in ast.walk(node.target))
    if isinstance(node, ast.withitem):
        return node.optional_vars is not None and any(_is(one, name) for one in ast.walk(node.optional_vars))
    return isinstance(node, ast.arg) and isinstance(name, ast.Name) and node.arg == name.id


def _is(node: ast.AST, name: ast.Attribute | ast.Name) -> bool:
    if isinstance(name, ast.Name):
        return isinstance(node, ast.Name) and node.id == name.id
    return isinstance(node, ast.Attribute) and node.attr == name.attr and source_name(node.value) == "self"
