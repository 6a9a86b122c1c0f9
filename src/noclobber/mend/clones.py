"""Clones: of a tensor before the first write of a batch, of a value where autograd saves it, of what shares memory."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.candidate import Candidate
from noclobber.mend.finding import Scene, argument_named, kind_of, name_of
from noclobber.syntax.edits import append, cloned_before
from noclobber.syntax.names import called, definition, dotted, names_bound, parameters
from noclobber.syntax.tree import FOR, FUNCTION, File, Loop, Place, walk
from noclobber.syntax.writes import WriteSyntax, base_of, is_namespace, loses_write, write_at, writes

_RESULTS = ("result", "output", "out")
_SECOND = ("other", "mat2", "vec2", "vec", "tensor2", "batch2", "weight", "exponent", "tensor")
_TENSORS = (ast.Attribute, ast.Subscript, ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare)
"""What may be a tensor, beside a name."""


def before_write(write: WriteSyntax, scene: Scene, cost: int = 3) -> Iterator[Candidate]:
    """`h = h.clone()` before the first of the statements in a row that write `h`; before the loop around them too.

    If the tensor is an argument, or part of an object, other code may hold it; the clone is then not the same tensor.
    None where the write would not reach all that goes on with the tensor.
    """
    file, name = write.file, write.name
    if not name or name.endswith(("torch", "self")) or loses_write(write):
        return
    loop = next(iter(reversed(file.loops(write.statement))), None)
    inside = cloned_before(file, _first_of_batch(write), name)
    saves = [one for one in scene.places("save") if one.file.path == file.path]
    outside = cloned_before(file, loop, name) if loop is not None and not _is_loop_variable(loop, name) else None
    if loop is not None and outside is not None and not any(loop in file.around(one.node) for one in saves):
        yield Candidate(f"write into a clone of `{name}`, made before the loop", (outside,), cost)
    if inside is not None:
        yield Candidate(f"write into a clone of `{name}`", (inside,), cost if loop is None else cost + 2)


def at_save(scene: Scene, cost: int = 4) -> Iterator[Candidate]:
    """`f(x.clone())` where autograd keeps the operand, `f(x).clone()` where it keeps the result."""
    save = scene.finding.save
    field, is_result = (save.field, save.is_output) if save is not None else ("", False)
    for place in scene.places("save"):
        if field in _RESULTS or is_result:
            yield from _of_result(place, cost)
            continue
        operands = _operands(place, _is_target(place) or field == "indices")
        chosen = _kept(operands, field, scene)
        if not chosen:
            continue
        for edits in dict.fromkeys((tuple(chosen), tuple(operands))):
            clones = tuple(append(place.file, one, ".clone()") for one in edits)
            if clones:
                names = ", ".join(f"`{place.file.source(one)}`" for one in edits)
                yield Candidate(f"let autograd keep a clone of {names}", clones, cost)
        if not any(place.file.source(one).endswith(".clone()") for one in operands):
            other = [one for one in operands if dotted(one) not in {write.name for write in scene.writes()}]
            yield from _of_definitions(place, other, cost)


def _of_result(place: Place, cost: int) -> Iterator[Candidate]:
    node = place.node
    if isinstance(node, ast.expr) and not _is_target(place):
        yield Candidate("go on with a clone of what autograd keeps", (append(place.file, node, ".clone()"),), cost)


def _of_definitions(place: Place, operands: list[ast.expr], cost: int) -> Iterator[Candidate]:
    """Where an operand is a name of a view, the clone at the place where the view is made."""
    file = place.file
    for one in operands:
        made = definition(file, one, place.node)
        if isinstance(made, (ast.Call, ast.Subscript)) and not file.source(made).endswith(".clone()"):
            title = f"let `{file.source(one)}` be a clone"
            yield Candidate(title, (append(file, made, ".clone()"),), cost)


def _operands(place: Place, is_target: bool) -> list[ast.expr]:
    """The tensors that an operation takes, for all that the text shows; of a part that is written, its index."""
    node = place.node
    if isinstance(node, ast.BinOp):
        found: list[ast.expr] = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        found = [node.operand]
    elif isinstance(node, ast.AugAssign):
        found = [node.value]
    elif isinstance(node, ast.Call) and called(node) not in ("grad", "backward"):
        given = [*node.args, *(one.value for one in node.keywords if one.arg is not None)]
        found = [one for one in given if not isinstance(one, ast.Starred)]
        if isinstance(node.func, ast.Attribute) and not is_namespace(node.func.value) and _is_method(node):
            found = [node.func.value, *found]
    elif isinstance(node, ast.Subscript):
        found = _indexes(node) if is_target else [node.value]
    else:
        return []
    return [one for one in found if _may_be_tensor(one)]


def _indexes(node: ast.Subscript) -> list[ast.expr]:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [one for one in parts if not isinstance(one, (ast.Slice, ast.Constant))]


def _kept(operands: list[ast.expr], field: str, scene: Scene) -> list[ast.expr]:
    """The operand that the saved field names; by the tensor's own name where that is in the text.

    A weight or buffer that the text does not name is one of a module called here: no operand is it.
    """
    short = name_of(scene.finding).rpartition(".")[2]
    named = [one for one in operands if short and dotted(base_of(one)).rpartition(".")[2] == short]
    if named or kind_of(scene.finding) == "parameter":
        return named
    if field in _SECOND and len(operands) > 1:
        return operands[1:2]
    return operands[:1]


def arguments(place: Place, cost: int = 3, name: str = "") -> Iterator[Candidate]:
    """`Function.apply(x)` as `Function.apply(x.clone())`: of the argument of a name, else of the first one."""
    call = place.file.nearest(place.node, ast.Call)
    chosen = argument_named(call, name) if call is not None and called(call) not in ("backward", "grad") else None
    if chosen is not None and not isinstance(chosen, ast.Constant):
        yield Candidate(f"give `{called(call)}` a clone", (append(place.file, chosen, ".clone()"),), cost)


def _first_of_batch(write: WriteSyntax) -> ast.stmt:
    """The first of the statements in a row, in one block, that write the same tensor."""
    siblings = write.file.block(write.statement)
    first = write.statement
    for one in reversed(siblings[: siblings.index(first)]):
        if hasattr(one, "body") or not _writes_part(write.file, one, write.name):
            break
        first = one
    return first


def _writes_part(file: File, statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
        return isinstance(target, ast.Subscript) and dotted(base_of(target)) == name
    earlier = write_at(Place(file, statement))
    return earlier.name == name and (isinstance(statement, ast.AugAssign) or earlier.call is not None)


def _is_loop_variable(loop: Loop, name: str) -> bool:
    return any(name.split(".")[0] in names_bound(one.target) for one in walk(loop, ast.stmt) if isinstance(one, FOR))


def _is_method(call: ast.Call) -> bool:
    """Whether a method is one of tensors, not a module kept as an attribute: `x.mul(y)`, not `self.net(y)`."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return not (dotted(owner) == "self" or (isinstance(owner, ast.Name) and owner.id[:1].isupper()))


def _may_be_tensor(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, _TENSORS) and not _has_write(node))


def _has_write(node: ast.expr) -> bool:
    return any(writes(one) for one in walk(node, ast.Call))


def _is_target(place: Place) -> bool:
    statement = place.row
    return isinstance(statement, ast.Assign) and place.node in statement.targets


def cloned_argument(write: WriteSyntax, cost: int = 3) -> Iterator[Candidate]:
    """A parameter of the function cloned where the view of it is taken that the write goes through."""
    file, scope = write.file, write.file.scope(write.statement)
    root = base_of(definition(file, write.base, write.statement))
    if isinstance(scope, FUNCTION) and root is not None and dotted(root).split(".")[0] in parameters(scope):
        yield Candidate(f"write into a clone of `{dotted(root)}`", (append(file, root, ".clone()"),), cost)
