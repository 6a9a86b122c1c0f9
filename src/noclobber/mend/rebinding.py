"""Write out of place, or into a clone, through a name that alone holds the tensor.

Sound if the name alone holds the written tensor (holding.py), for the first blamed statement and each later one that
writes through the name. Each statement then makes a new tensor, and each later use of the name reads that tensor.
Nothing else can see the difference, because nothing else holds the memory. The same holds for an attribute, or an item
of a list or dict, that was seen to hold the tensor alone (seen.py): the new tensor is put there.

- Out of place the result must have the element type of the tensor. In place it always has; out of place an operand of a
  wider type would decide. So what is narrower than float32 is cloned instead.
- A clone comes before the statement, so an operand on its right side must not be the tensor itself: autograd would save
  the clone, and the write would spoil that.
- Every write that the finding names must be among those statements.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from noclobber.mend.finding import blamed, kind_of, lines_written
from noclobber.mend.flags import dropped
from noclobber.mend.holding import holds_alone, root_of, writes_through
from noclobber.mend.placing import may_be_kept, place_written
from noclobber.mend.seen import Holders, are_over, holders_at
from noclobber.mend.sound import Sound
from noclobber.model.events import without_indexes
from noclobber.model.finding import Cure, Edit, Finding
from noclobber.syntax.edits import cloned_before, replace
from noclobber.syntax.names import called, dotted, names_used
from noclobber.syntax.tree import WITH, File, Place, starts
from noclobber.syntax.writes import is_flagged, loses_write, out_of_place, write_at, written_by

_CODES = ("NC101", "NC102", "NC201", "NC203", "NC204", "NC209", "NC210", "NC305", "NC399")
_SEEN = ("NC303", "NC304", "NC307")
"""Of these, only where it was seen who holds the view that PyTorch refuses to write."""
_WIDE = ("float32", "float64", "complex64", "complex128")


def rebound(finding: Finding) -> Sound | None:
    """Return a rewrite that makes the writes of a finding out of place, or else into a clone."""
    place = blamed(finding)
    if place is None or finding.code not in (*_CODES, *_SEEN) or kind_of(finding) == "parameter":
        return None
    file, write = place.file, place.statement
    if write is None:
        return None
    holders, target = holders_at(finding, file, write), write_at(Place(file, _part_of(write))).target
    if holders is not None and target is not None and (held := place_written(file, target, holders)) is not None:
        return _put_anew(finding, file, write, held, holders)
    name = _name_written(file, write)
    if holders is None and finding.code in _SEEN:
        return None
    if name is None or loses_write(write_at(Place(file, _part_of(write)))):
        return None
    later = [one for one in dict.fromkeys(writes_through(file, file.scope(write), name)) if _follows(file, one, write)]
    if not lines_written(finding, file) <= {one.lineno for one in later}:
        return None
    edits, cloned = [], False
    for one in later:
        if not holds_alone(file, name, one, holders=holders_at(finding, file, one)):
            return None
        edit, clones = _edit(finding, file, one, name)
        if edit is None:
            return None
        edits.append(edit)
        cloned |= clones
    return _sound(name, edits, cloned=cloned)


def _sound(name: str, edits: Sequence[Edit], *, cloned: bool) -> Sound:
    if cloned:
        return Sound(f"write into a clone of `{name}`", tuple(edits), Cure.CLONE_FIRST)
    return Sound("write out of place", tuple(edits), Cure.OUT_OF_PLACE)


def _put_anew(finding: Finding, file: File, write: ast.stmt, held: ast.expr, holders: Holders) -> Sound | None:
    """The same for an attribute or an item that was seen to hold the tensor."""
    name, in_mode = file.source(held), any(isinstance(one, WITH) for one in file.around(write))
    if in_mode or lines_written(finding, file) != {write.lineno} or may_be_kept(file, held, write):
        return None
    edit, clones = _edit(finding, file, write, name) if are_over(file, name, write, holders) else (None, False)
    return _sound(name, [edit], cloned=clones) if edit is not None else None


def _edit(finding: Finding, file: File, write: ast.stmt, name: str) -> tuple[Edit | None, bool]:
    """Return the edit that binds a name, attribute or item to a new tensor, and whether it does by a clone."""
    edit = _out_of_place(finding, file, write, name)
    if edit is None:
        return _into_clone(file, write, name), True
    bound = isinstance(write, ast.Assign) or edit.replacement.startswith(f"{name} = ")
    return (edit if bound else None), False  # `h.data` and `h.grad` are other names


def _name_written(file: File, write: ast.stmt) -> str | None:
    """`h` of `h += 1`, `h[0] = 1`, `h[0].add_(1)`, `h = h.add_(1)` and `torch.relu_(h)`."""
    target = write_at(Place(file, _part_of(write))).target
    root = root_of(target) if target is not None else None
    if not isinstance(root, ast.Name) or write not in set(writes_through(file, file.scope(write), root.id)):
        return None
    return root.id


def _part_of(write: ast.stmt) -> ast.AST:
    if isinstance(write, (ast.Assign, ast.Expr)):
        is_item = isinstance(write, ast.Assign) and isinstance(write.targets[0], ast.Subscript)
        return write.targets[0] if isinstance(write, ast.Assign) and is_item else write.value
    return write


def _follows(file: File, one: ast.stmt, write: ast.stmt) -> bool:
    """Return True if a statement may run after another one: it comes later in the text, or a loop holds both."""
    return starts(one) >= starts(write) or bool(set(file.loops(one)) & set(file.loops(write)))


def _out_of_place(finding: Finding, file: File, write: ast.stmt, name: str) -> Edit | None:
    if (finding.tensor.dtype if finding.tensor is not None else "").removeprefix("torch.") not in _WIDE:
        return None
    call = write.value if isinstance(write, (ast.Assign, ast.Expr)) and isinstance(write.value, ast.Call) else None
    if isinstance(write, ast.AugAssign):
        if file.source(write.target) != name:
            return None
    elif isinstance(write, ast.Assign) and isinstance(write.targets[0], ast.Subscript):
        found = out_of_place(write_at(Place(file, write.targets[0])))
        return found[0] if found else None
    elif call is None or (isinstance(write, ast.Assign) and not _is_bound_anew(write, call)):
        return None
    elif called(call) == "detach_" and isinstance(call.func, ast.Attribute) and not call.args:
        owner = dotted(call.func.value)
        return replace(file, write, f"{owner} = {owner}.detach()") if owner and "." not in owner else None
    elif is_flagged(call):
        return dropped(file, call) if isinstance(write, ast.Assign) else None
    found = out_of_place(write_at(Place(file, call or write)))
    return found[0] if len(found) == 1 else None


def _is_bound_anew(write: ast.Assign, call: ast.Call) -> bool:
    """`h = F.relu(h, inplace=True)` and `h = h.add_(1)`: the result takes the name of what is written."""
    target = written_by(call)
    return len(write.targets) == 1 and isinstance(target, ast.Name) and dotted(write.targets[0]) == target.id


def _into_clone(file: File, write: ast.stmt, name: str) -> Edit | None:
    if file.loops(write) or (isinstance(write, ast.Assign) and isinstance(write.targets[0], ast.Name)):
        return None
    values: list[ast.expr] = []
    if isinstance(write, ast.AugAssign):
        if not isinstance(write.op, (ast.Add, ast.Sub)) and not isinstance(write.value, ast.Constant):
            return None  # `h[0] *= b` saves what it overwrites
        values = [write.value]
    elif isinstance(write, ast.Assign):
        values = [write.value]
    elif isinstance(write, ast.Expr) and isinstance(write.value, ast.Call):
        values = [*write.value.args, *(one.value for one in write.value.keywords)]
        if not isinstance(write.value.func, ast.Attribute) or called(write.value) not in _SAVING_NOTHING:
            return None
    last = without_indexes(name).removesuffix("[]").rpartition(".")[2]
    if any(last in names_used(value) for value in values) or file.own_lines(write) is None:
        return None
    return cloned_before(file, write, name)


_SAVING_NOTHING = (
    "add_", "sub_", "fill_", "zero_", "copy_", "neg_", "normal_", "uniform_", "masked_fill_", "index_fill_",
    "fill_diagonal_", "bernoulli_", "exponential_",
)  # fmt: skip
"""Methods that save nothing of what they overwrite."""
