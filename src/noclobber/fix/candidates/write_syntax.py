"""The text of a write: which form it has, what tensor it writes, and what that tensor is a part or a view of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from noclobber.fix.candidates.finding_source import Place, Scene
from noclobber.fix.candidates.syntax import ParsedFile, called, dotted, small, walk
from noclobber.model.finding import Edit
from noclobber.model.source import Span

FUNCTIONS = ("torch", "F", "functional", "nn.functional", "torch.nn.functional")
"""Whose functions take the tensor that they write as an argument, and have a twin that returns another."""
_NAMESPACES = ("torch", "F", "functional", "nn", "init", "utils", "math", "np", "numpy")
VIEWS = {
    "view", "view_as", "reshape", "flatten", "unflatten", "t", "transpose", "permute", "squeeze", "unsqueeze", "narrow",
    "select", "swapaxes", "swapdims", "movedim", "diagonal", "detach", "T", "mT", "H", "data", "real", "imag",
}  # fmt: skip
"""Methods and attributes whose result shares the bytes of the tensor they are asked of."""


@dataclass(frozen=True, slots=True)
class WriteSyntax:
    """A write in the source. `target` is the expression written; `call` the writing call, None for an assignment."""

    file: ParsedFile
    node: cst.CSTNode
    statement: cst.CSTNode
    target: cst.BaseExpression | None
    call: cst.Call | None

    @property
    def base(self) -> cst.BaseExpression | None:
        """The name or attribute that the target is, or is a part or a view of: `h` of `h[0].view(-1)`."""
        return base_of(self.target)

    @property
    def name(self) -> str:
        """The base as dotted text, such as "self.buf"; empty where it has none."""
        return dotted(self.base)


def written(scene: Scene) -> list[WriteSyntax]:
    """The writes of a finding: those at its labels, then those of its list at other lines."""
    found = [write_at(one) for one in scene.places("write")]
    lines = {(one.file.path, one.file.line(one.statement)) for one in found}
    for one in scene.finding.writes:
        path, line = str(one.get("path") or ""), one.get("line")
        file = scene.file(path) if path and isinstance(line, int) and (path, line) not in lines else None
        statement = next(_starting(file, line), None) if file is not None and isinstance(line, int) else None
        if file is not None and statement is not None:
            found.append(write_at(Place(file, statement)))
            lines.add((path, file.line(statement)))
    return found


def write_at(place: Place) -> WriteSyntax:
    """The write at a place: an augmented assignment, an assignment to a part, or a writing call."""
    file, node = place.file, place.node
    statement = small(file, node) or node
    if isinstance(statement, cst.AugAssign):
        return WriteSyntax(file, statement, statement, statement.target, None)
    call = file.around(node, cst.Call)
    if call is not None and (isinstance(node, cst.Call) or writes(call)):
        return WriteSyntax(file, call, statement, _target(call), call)
    if isinstance(statement, cst.Assign):
        targets = [one.target for one in statement.targets]
        exact = [one for one in targets if one is node or file.span(one) == file.span(node)]
        part = [one for one in targets if isinstance(one, (cst.Subscript, cst.Attribute))]
        if exact or part:
            return WriteSyntax(file, node, statement, (exact or part)[0], None)
    if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call) and writes(statement.value):
        return WriteSyntax(file, statement.value, statement, _target(statement.value), statement.value)
    return WriteSyntax(file, node, statement, None, None)


def writes(call: cst.Call) -> bool:
    """Whether a call has the name of a writing one, `out=`, or `inplace=True`."""
    name = called(call)
    return (name.endswith("_") and not name.startswith("_")) or keyword(call, "out") is not None or is_flagged(call)


def has_twin(call: cst.Call) -> bool:
    """Whether the same call without the underscore returns what it would write, for all that the names tell."""
    owner = call.func.value if isinstance(call.func, cst.Attribute) else None
    return owner is not None and (dotted(owner) in FUNCTIONS or not is_namespace(owner))


def is_namespace(owner: cst.BaseExpression) -> bool:
    """Whether what a function is asked of is no tensor: `torch.nn.init`."""
    return dotted(owner).split(".")[0] in _NAMESPACES


def is_flagged(call: cst.Call) -> bool:
    """Whether a call has `inplace=True`."""
    flag = keyword(call, "inplace")
    return flag is not None and dotted(flag.value) == "True"


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """The argument of a keyword."""
    return next((one for one in call.args if one.keyword is not None and one.keyword.value == name), None)


def unretained(file: ParsedFile, call: cst.Call) -> Edit | None:
    """Take `retain_graph=True` out of a call; None where it is not there."""
    flag = keyword(call, "retain_graph")
    if flag is None or dotted(flag.value) != "True":
        return None
    index, span = list(call.args).index(flag), file.span(flag)
    if index:
        start = file.span(call.args[index - 1].value)
        return Edit(Span(file.path, start.end_line, start.end_column, span.end_line, span.end_column), "")
    return Edit(span, "") if len(call.args) == 1 else None


def with_argument(file: ParsedFile, call: cst.Call, text: str) -> Edit:
    """Give a call one more argument, at its end."""
    close = file.span(call)
    here = Span(file.path, close.end_line, close.end_column - 1, close.end_line, close.end_column - 1)
    return Edit(here, f", {text}" if call.args else text)


def chain(call: cst.BaseExpression) -> list[cst.Call]:
    """`t.mul_(2).add_(x)`: the call of `add_`, then that of `mul_`; empty for what is no method call."""
    calls: list[cst.Call] = []
    while isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
        if is_namespace(call.func.value):
            break
        calls.append(call)
        call = call.func.value
    return calls


def base_of(target: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """Strip indexes, views and `.data`: `h` of `h[0].view(-1)`, `self.buf` of `self.buf.data[i]`."""
    while target is not None:
        if isinstance(target, cst.Subscript):
            target = target.value
        elif isinstance(target, cst.Call) and isinstance(target.func, cst.Attribute):
            if called(target) not in VIEWS and not writes(target):
                return None
            target = target.func.value
        elif isinstance(target, cst.Attribute) and target.attr.value in VIEWS:
            target = target.value
        else:
            break
    return target if dotted(target) else None


def is_loaded(file: ParsedFile, name: str, scope: cst.CSTNode, after: int) -> bool:
    """Whether a dotted name is read in a scope in a line after `after`."""
    return any(file.line(one) > after for one in reads(file, name, scope))


def is_read_again(file: ParsedFile, name: str, statement: cst.CSTNode) -> bool:
    """Whether a dotted name is read in lines after a statement, or elsewhere in a loop around it."""
    if is_loaded(file, name, file.scope(statement), file.line(statement)):
        return True
    loops = [one for one in file.ancestors(statement) if isinstance(one, (cst.For, cst.While))]
    own = list(reads(file, name, statement))
    return any(one not in own for loop in loops for one in reads(file, name, loop))


def reads(file: ParsedFile, name: str, scope: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Where a dotted name is read in a scope."""
    for one in walk(scope, cst.Name, cst.Attribute):
        if dotted(one) == name and not is_stored(file, one):
            yield one


def is_stored(file: ParsedFile, node: cst.CSTNode) -> bool:
    """Whether a name is assigned to, by a loop or in a row of names too, or is only the end of a longer one."""
    parent = file.parents.get(node)
    if isinstance(parent, cst.Attribute):
        return parent.attr is node
    while isinstance(parent, (cst.Element, cst.StarredElement, cst.Tuple, cst.List)):
        node, parent = parent, file.parents.get(parent)
    if isinstance(parent, (cst.For, cst.CompFor)):
        return parent.target is node
    return isinstance(parent, (cst.AssignTarget, cst.Param))


def parameters(scope: cst.CSTNode) -> list[str]:
    """The names of a function's parameters; empty for a module."""
    return [one.name.value for one in walk(scope.params, cst.Param)] if isinstance(scope, cst.FunctionDef) else []


def _target(call: cst.Call) -> cst.BaseExpression | None:
    """The tensor that a call writes: `t` of `t.add_(x)`, `torch.add_(t, x)`, `f(t, inplace=True)` and `f(x, out=t)`."""
    out = keyword(call, "out")
    if out is not None:
        return out.value
    if isinstance(call.func, cst.Attribute) and called(call).endswith("_") and not is_namespace(call.func.value):
        calls = chain(call)
        lowest = next((one for one in reversed(calls) if writes(one)), call)
        return lowest.func.value if isinstance(lowest.func, cst.Attribute) else None
    return call.args[0].value if call.args and call.args[0].keyword is None else None


def _starting(file: ParsedFile, line: int) -> Iterator[cst.CSTNode]:
    for one in walk(file.module, cst.BaseSmallStatement):  # type: ignore[type-abstract]
        span = file.span(one)
        if span.line <= line <= span.end_line:
            yield one
