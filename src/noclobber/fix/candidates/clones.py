"""Clones: of a tensor before the first write of a batch, of a value where autograd saves it, of what shares memory."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from noclobber.fix.candidates.finding_source import Place, Scene
from noclobber.fix.candidates.syntax import ParsedFile, append, before, block, called, dotted, small, walk
from noclobber.fix.candidates.write_syntax import (
    WriteSyntax,
    base_of,
    is_namespace,
    parameters,
    write_at,
    writes,
    written,
)
from noclobber.fix.edits.candidate import Candidate
from noclobber.model.finding import Edit

_RESULTS = ("result", "output", "out")
_SECOND = ("other", "mat2", "vec2", "vec", "tensor2", "batch2", "weight", "exponent", "tensor")
_OPERATORS = (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison)


def before_write(write: WriteSyntax, scene: Scene, cost: int = 3) -> Iterator[Candidate]:
    """`h = h.clone()` before the first of the statements in a row that write `h`; before the loop around them too.

    Where the tensor came in as an argument, or is part of an object, others may hold it: the clone is theirs no more.
    """
    file, name = write.file, write.name
    if not name or name.endswith(("torch", "self")):
        return
    line = f"{name} = {name}.clone()"
    first = _first_of_batch(write)
    loop = _loop_around(file, write.statement)
    inside = before(file, first, line)
    saves = [one for one in scene.places("save") if one.file.path == file.path]
    outside = before(file, loop, line) if loop is not None and not _is_loop_variable(loop, name) else None
    if loop is not None and outside is not None and not any(loop in file.ancestors(one.node) for one in saves):
        yield Candidate(f"write into a clone of `{name}`, made before the loop", (outside,), cost)
    if inside is not None:
        yield Candidate(f"write into a clone of `{name}`", (inside,), cost if loop is None else cost + 2)


def at_save(scene: Scene, cost: int = 4) -> Iterator[Candidate]:
    """`f(x.clone())` where autograd keeps the operand, `f(x).clone()` where it keeps the result."""
    save = scene.finding.save or {}
    field, places = str(save.get("field") or ""), scene.places("save")
    for place in places:
        if field in _RESULTS or "keeps its result" in _words(scene, "save"):
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
            other = [one for one in operands if dotted(one) not in {write.name for write in written(scene)}]
            yield from _of_definitions(place, other, cost)


def _of_result(place: Place, cost: int) -> Iterator[Candidate]:
    node = place.node
    if isinstance(node, cst.BaseExpression) and not _is_target(place):
        yield Candidate("go on with a clone of what autograd keeps", (append(place.file, node, ".clone()"),), cost)


def _of_definitions(place: Place, operands: list[cst.BaseExpression], cost: int) -> Iterator[Candidate]:
    """Where an operand is a name of a view, the clone at the place where the view is made."""
    file = place.file
    for one in operands:
        made = definition(file, one, place.node)
        if isinstance(made, (cst.Call, cst.Subscript)) and not file.source(made).endswith(".clone()"):
            title = f"let `{file.source(one)}` be a clone"
            yield Candidate(title, (append(file, made, ".clone()"),), cost)


def _operands(place: Place, is_target: bool) -> list[cst.BaseExpression]:
    """The tensors that an operation takes, for all that the text shows; of a part that is written, its index."""
    file, node = place.file, place.node
    if isinstance(node, cst.BinaryOperation):
        found: list[cst.BaseExpression] = [node.left, node.right]
    elif isinstance(node, cst.UnaryOperation):
        found = [node.expression]
    elif isinstance(node, cst.AugAssign):
        found = [node.value]
    elif isinstance(node, cst.Call) and called(node) not in ("grad", "backward"):
        found = [one.value for one in node.args if not one.star]
        if isinstance(node.func, cst.Attribute) and not is_namespace(node.func.value):
            owner = node.func.value
            if _is_method(node):
                found = [owner, *found]
    elif isinstance(node, cst.Subscript):
        found = _indexes(node) if is_target else [node.value]
    else:
        return []
    return [one for one in found if _may_be_tensor(file, one)]


def _indexes(node: cst.Subscript) -> list[cst.BaseExpression]:
    parts = [one.slice for one in node.slice]
    return [one.value for one in parts if isinstance(one, cst.Index) and not isinstance(one.value, cst.Ellipsis)]


def _kept(operands: list[cst.BaseExpression], field: str, scene: Scene) -> list[cst.BaseExpression]:
    """The operand that the saved field names; by the tensor's own name where that is in the text.

    A weight or buffer that the text does not name is one of a module called here: no operand is it.
    """
    short = scene.name().rpartition(".")[2]
    named = [one for one in operands if short and dotted(base_of(one)).rpartition(".")[2] == short]
    if named or scene.kind() == "parameter":
        return named
    if field in _SECOND and len(operands) > 1:
        return operands[1:2]
    return operands[:1]


def definition(file: ParsedFile, use: cst.BaseExpression, at: cst.CSTNode) -> cst.BaseExpression | None:
    """The value last assigned to a plain name before a node, in the same function; None where it is not plain."""
    if not isinstance(use, cst.Name):
        return None
    scope, line, found = file.scope(at), file.line(at), None
    assigned: list[cst.Assign | cst.AnnAssign] = [*walk(scope, cst.Assign), *walk(scope, cst.AnnAssign)]
    for one in sorted(assigned, key=file.line):
        targets = [each.target for each in one.targets] if isinstance(one, cst.Assign) else [one.target]
        plain = len(targets) == 1 and isinstance(targets[0], cst.Name)
        if plain and file.line(one) < line and dotted(targets[0]) == use.value:
            found = one.value
    return found


def arguments(place: Place, cost: int = 3, name: str = "") -> Iterator[Candidate]:
    """`Function.apply(x)` as `Function.apply(x.clone())`: of the argument of a name, else of the first one."""
    call = place.file.around(place.node, cst.Call)
    if call is not None and call.args and not call.args[0].star:
        chosen = next((one for one in call.args if name and dotted(one.value) == name), call.args[0])
        edit = append(place.file, chosen.value, ".clone()")
        yield Candidate(f"give `{called(call)}` a clone", (edit,), cost)


def _first_of_batch(write: WriteSyntax) -> cst.CSTNode:
    """The first of the statements in a row, in one block, that write the same tensor."""
    file = write.file
    line = file.around(write.statement, cst.SimpleStatementLine)
    siblings = list(block(file.parents[line])) if line is not None else []
    first = line or write.statement
    for one in reversed(siblings[: siblings.index(line)] if line is not None else []):
        inner = one.body[0] if isinstance(one, cst.SimpleStatementLine) and len(one.body) == 1 else None
        if inner is None or not _writes_part(file, inner, write.name):
            break
        first = one
    return first


def _writes_part(file: ParsedFile, statement: cst.CSTNode, name: str) -> bool:
    earlier = write_at(Place(file, statement))
    if isinstance(statement, cst.Assign):
        target = statement.targets[0].target
        return isinstance(target, cst.Subscript) and dotted(base_of(target)) == name
    return earlier.name == name and (isinstance(statement, cst.AugAssign) or earlier.call is not None)


def _loop_around(file: ParsedFile, node: cst.CSTNode) -> cst.For | cst.While | None:
    """The outermost loop around a node in its function."""
    found = None
    for one in file.ancestors(node):
        if isinstance(one, (cst.FunctionDef, cst.Lambda)):
            break
        if isinstance(one, (cst.For, cst.While)):
            found = one
    return found


def _is_loop_variable(loop: cst.CSTNode, name: str) -> bool:
    loops = walk(loop, cst.For)
    return any(name.split(".")[0] == one.value for each in loops for one in walk(each.target, cst.Name))


def _is_method(call: cst.Call) -> bool:
    """Whether a method is one of tensors, not a module kept as an attribute: `x.mul(y)`, not `self.net(y)`."""
    owner = call.func.value if isinstance(call.func, cst.Attribute) else None
    return not (dotted(owner) == "self" or (isinstance(owner, cst.Name) and owner.value[:1].isupper()))


def _may_be_tensor(file: ParsedFile, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Name):
        return node.value not in ("True", "False", "None")
    return isinstance(node, (cst.Attribute, cst.Subscript, cst.Call, *_OPERATORS)) and not writes_any(node)


def writes_any(node: cst.CSTNode) -> bool:
    """Whether an expression holds a writing call."""
    return any(writes(one) for one in walk(node, cst.Call))


def _is_target(place: Place) -> bool:
    statement = small(place.file, place.node)
    return isinstance(statement, cst.Assign) and any(one.target is place.node for one in statement.targets)


def _words(scene: Scene, role: str) -> str:
    return next((one.text for one in scene.finding.labels if one.role == role), "")


def cloned_argument(write: WriteSyntax, cost: int = 3) -> Iterator[Candidate]:
    """A parameter of the function cloned as its first statement, where the write goes through a view of it."""
    file, scope = write.file, write.file.scope(write.statement)
    made = definition(file, write.base, write.statement) if write.base is not None else None
    root = base_of(made)
    if isinstance(scope, cst.FunctionDef) and root is not None and dotted(root).split(".")[0] in parameters(scope):
        yield Candidate(f"write into a clone of `{dotted(root)}`", (_root_cloned(file, root),), cost)


def _root_cloned(file: ParsedFile, root: cst.BaseExpression) -> Edit:
    return append(file, root, ".clone()")
