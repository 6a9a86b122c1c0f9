"""Finds what a call calls: the module that a name is bound to, or a function of the file."""

from __future__ import annotations

import ast

from noclobber.syntax.names import called, is_declared, last_name
from noclobber.syntax.tree import File, Scope, functions, walk, within

_UNKNOWN = ("register_forward", "register_module_forward", ".inplace", "setattr(")
"""What lets a program see what any module is given and gives, or make modules other than they were built."""
_OF_MODULES = ("to", "cuda", "cpu", "double", "float", "half", "bfloat16", "eval", "train", "requires_grad_")
"""Methods that give the module that they are called on."""
_PLAIN = ("staticmethod", "no_grad", "enable_grad")
"""Decorators that leave a function what it is."""


def module_called(file: File, call: ast.Call) -> ast.Call | None:
    """`nn.Linear(2, 3)` for `self.fc(x)`, where the class binds `self.fc` to that once and to nothing else; the same
    for a name of the function or the module."""
    return _module(file, call.func, call)


def _module(file: File, callee: ast.expr, where: ast.AST) -> ast.Call | None:
    """What makes a module: `nn.Linear(2, 3)` also for `nn.Linear(2, 3).to(device)`."""
    made = None if any(words in file.text for words in _UNKNOWN) else bound_to(file, callee, where)
    while called(made) in _OF_MODULES and isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute):
        if not isinstance(made.func.value, ast.Call):
            return None
        made = made.func.value
    return made


def bound_to(file: File, callee: ast.expr, where: ast.AST) -> ast.Call | None:
    """Return the only call that a name or attribute of `self` is bound to; None if that is not certain.

    `t += 1` is no other binding: a tensor is written, and what else has calls here has no `+=`.
    """
    value = _value(file, callee, where)
    return value if isinstance(value, ast.Call) else None


def _value(file: File, callee: ast.expr, where: ast.AST) -> ast.expr | None:
    """The same of any value."""
    if not isinstance(callee, (ast.Attribute, ast.Name)):
        return None
    bound = [one for one in _bindings(file, callee, where) if not isinstance(one, ast.AugAssign)]
    found = bound[0] if len(bound) == 1 else None
    value = found.value if isinstance(found, (ast.Assign, ast.AnnAssign)) else None
    target = found.targets[0] if isinstance(found, ast.Assign) else None
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        value = next((one for to, one in zip(target.elts, value.elts, strict=True) if _is(to, callee)), None)
    elif isinstance(target, ast.Tuple):
        value = None
    return value


def _bindings(file: File, callee: ast.Attribute | ast.Name, where: ast.AST) -> list[ast.AST]:
    """What binds an attribute of `self` in its class, or a name in the innermost scope that binds it."""
    if isinstance(callee, ast.Attribute):
        around = file.class_of(where) if last_name(callee.value) == "self" else None
        if around is None or _is_set_from_outside(file, callee.attr):
            return []
        return [one for one in walk(around, ast.AST) if _binds(one, callee)]
    if is_declared(file.tree, callee.id) or any(is_declared(one, callee.id) for one in functions(file.tree)):
        return []
    scopes = (one for one in file.around(where) if isinstance(one, Scope))
    bound = ([one for one in within(scope, ast.AST) if _binds(one, callee)] for scope in scopes)
    return next(filter(None, bound), [])


def _is_set_from_outside(file: File, attribute: str) -> bool:
    """Return True if the file sets an attribute of this name on anything but `self`."""
    stored = (one for one in walk(file.tree, ast.Attribute) if isinstance(one.ctx, ast.Store))
    return any(one.attr == attribute and last_name(one.value) != "self" for one in stored)


def function_called(file: File, callee: ast.expr, where: ast.AST) -> ast.FunctionDef | None:
    """The function of the file that a call of something runs: by its name, a method of `self`, the `forward` of a
    module of the file, or that of an `autograd.Function` that is applied, also as `spike = Spike.apply`."""
    found: list[ast.FunctionDef] = []
    value = _value(file, callee, where)
    callee = value if isinstance(value, ast.Attribute) and value.attr == "apply" else callee
    if isinstance(callee, ast.Name) and bound_to(file, callee, where) is None:
        found = _functions(file.tree, callee.id)
    elif isinstance(callee, ast.Attribute) and callee.attr == "apply":
        found = _functions(_class(file, last_name(callee.value)), "forward")
    elif isinstance(callee, ast.Attribute) and last_name(callee.value) == "self":
        found = _functions(file.class_of(where), callee.attr)
    made = _module(file, callee, where)
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
    return isinstance(node, ast.Attribute) and node.attr == name.attr and last_name(node.value) == "self"
