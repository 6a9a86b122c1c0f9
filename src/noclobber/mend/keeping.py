"""Let autograd keep a clone: of an operand, or of what an operator gives.

Sound wherever the syntax at the save is one operator of the table, in a form whose operands are known. The values of
the program stay as they are, and so does who shares memory with whom, but for the copy that autograd keeps, which
nothing else holds. The gradient passes through the clone.

- An operand: the field of the node says which it is. Writes to the memory of the operand no longer reach what is saved.
- A result: what the expression gives is a clone, so the program writes to that and never to what is saved. An operator
  in place is none, as its result is its input's memory.
"""

from __future__ import annotations

import ast

from noclobber.mend.finding import blamed, kind_of, name_of, place
from noclobber.mend.holding import arguments_of, writes_through
from noclobber.mend.resolving import function_called, module_called
from noclobber.mend.sound import Sound
from noclobber.model.finding import Cure, Finding
from noclobber.model.operators import KEPT, NODES
from noclobber.rules.shared.wording import listed, stem
from noclobber.syntax.edits import append
from noclobber.syntax.names import called, has_stars, keyword, last_name
from noclobber.syntax.tree import File
from noclobber.syntax.writes import NAMESPACES, is_flagged

_OPERATORS: dict[type[ast.operator], str] = {ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul", ast.Pow: "pow"}
_FIRST, _SECOND = ("self", "input", "mat1"), ("other", "mat2", "vec", "exponent", "weight", "tensor")
"""Fields of what is the first and the second operand."""
_RESULT = ("result",)
_CODES = ("NC101", "NC102", "NC103", "NC201", "NC202", "NC203", "NC204")


def kept_as_clone(finding: Finding) -> Sound | None:
    """A clone where the tensor of a finding is saved."""
    found = place(finding, "save")
    if finding.code not in _CODES or found is None or finding.save is None:
        return None
    file, save = found.file, found.node
    node, field = stem(finding.save.node), finding.save.field
    if not isinstance(save, ast.expr) or _is_meant(finding):
        return None
    operands = [_operand(file, save, node, one) or _applied_to(file, save, finding) for one in finding.fields]
    if None not in operands:
        kept = list(dict.fromkeys(one for one in operands if one is not None))
        texts = dict.fromkeys(file.source(one) for one in kept)
        edits = [append(file, one, ".clone()") for one in kept]
        clones = "a clone" if len(kept) == 1 else "clones"
        return Sound(
            f"let autograd keep {clones} of {listed([f'`{one}`' for one in texts])}",
            tuple(edits),
            Cure.CLONE_FOR_READER,
        )
    if field in ("result", "output") and _gives_what_it_saves(file, save, node):
        return Sound(
            "write into a clone of the result, and let autograd keep the original",
            (append(file, save, ".clone()"),),
            Cure.CLONE_FIRST,
        )
    return None


def _is_meant(finding: Finding) -> bool:
    """Return True if the write may be meant as a part of the function, or may be a mistake that other code also sees.

    So it may where a value is given through `.data` to what is in the graph, and where a tensor is added to more than
    once, as when two modules are handed the same one: then no source tells what is right.
    """
    writes = [one for one in finding.writes if one.overlaps]
    if any(one.via in ("set_data", "swap") or one.op in _MOVING for one in finding.writes):
        return True  # what the name then holds is another memory: more than one save may be concerned
    if writes and writes[0].via == "data" and kind_of(finding) == "tensor":
        return True
    found = blamed(finding)
    write = found.statement if found is not None else None
    target = write.targets[0] if isinstance(write, ast.Assign) else getattr(write, "target", None)
    if isinstance(target, ast.Subscript) or finding.save is None:
        return False
    places = [(one.op, one.site) for one in writes if one.op in _ADDING]
    return bool(places) and (len(set(places)) < len(places) or finding.save.version > 0)


_MOVING = tuple(f"aten::{name}_" for name in ("set", "resize", "resize_as", "transpose", "t", "squeeze", "unsqueeze"))
"""Operators that change where a tensor looks."""
_ADDING = tuple(
    f"aten::{name}_" for name in ("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "clamp", "relu")
)


def _operand(file: File, save: ast.expr, node: str, field: str) -> ast.expr | None:
    """Return the operand that a node saves in a field, if the text can clone it there."""
    which = 0 if field in _FIRST else 1 if field in _SECOND else None
    operands = _operands(file, save, node)
    if which is None or len(operands) <= which:
        return None
    operand = operands[which]
    return None if isinstance(operand, (ast.Constant, ast.Starred, ast.Await, ast.Yield)) else operand


def _operands(file: File, save: ast.expr, node: str) -> list[ast.expr]:
    if isinstance(save, ast.BinOp):
        # `2 * h` calls the operator of `h`, which is then the first operand.
        if not _keeps_operands(_OPERATORS.get(type(save.op), ""), node) or isinstance(
            save.left, (ast.Constant, ast.UnaryOp)
        ):
            return []
        return [save.left, save.right]
    if not isinstance(save, ast.Call) or has_stars(save) or is_flagged(save):
        return []
    made = module_called(file, save)
    if made is not None:
        return save.args[:1] if _keeps_operands(called(made), node) else []
    if not _keeps_operands(called(save), node) or keyword(save, "out") is not None:
        return []
    if not isinstance(save.func, ast.Attribute):
        return []
    if last_name(save.func.value) in NAMESPACES:
        return list(save.args)
    return [save.func.value, *save.args]


def _keeps_operands(name: str, node: str) -> bool:
    """Return True if a function, method or module is recorded by a node that keeps what it is given."""
    return node in NODES.get(name, ()) and KEPT.get(node) != _RESULT


def _keeps_result(name: str, node: str) -> bool:
    """Return True if it is recorded by a node that keeps the one tensor that it gives, and nothing else."""
    return node in NODES.get(name, ()) and KEPT.get(node) == _RESULT


def _gives_what_it_saves(file: File, save: ast.expr, node: str) -> bool:
    if not isinstance(save, ast.Call) or is_flagged(save) or keyword(save, "out") is not None:
        return False
    made = module_called(file, save)
    if made is not None:
        return _keeps_result(called(made), node) and not is_flagged(made)
    return isinstance(save.func, ast.Attribute) and _keeps_result(called(save), node)


def _applied_to(file: File, save: ast.expr, finding: Finding) -> ast.expr | None:
    """The argument of `MyFunction.apply(...)` that has the name of the tensor, where that Function writes to none."""
    if not isinstance(save, ast.Call) or called(save) != "apply":
        return None
    function, last = function_called(file, save.func, save), name_of(finding).rpartition(".")[2]
    if function is None or any(True for name in arguments_of(function) for _ in writes_through(file, function, name)):
        return None
    found = [one for one in save.args if last and last_name(one) == last]
    return found[0] if len(found) == 1 else None
