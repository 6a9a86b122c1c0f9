"""Copy for the reader: let autograd keep a clone of an operand, or of what an operator gives.

Sound wherever the syntax at the save is one operator, in a form whose operands are known, and none of these may be a
number in another call (numbers.py). The values of the program stay as they are, and so does who shares memory with
whom, but for the copy that autograd keeps, which nothing else holds. The gradient passes through the clone.

- An operand: the field of the node says which it is. Writes to the memory of the operand no longer reach what is saved.
- An argument of a function or a module of PyTorch, or of a Function of the file, that is the written tensor, by its
  name, or the only one that may be; all that may be, where each is a tensor.
- An attribute of a `ctx`: what the `forward` has computed, where the class only reads it.
- A result: what the expression gives is a clone, so the program writes to that and never to what is saved. An operator
  in place is none, as its result is its input's memory.

None of these where the file gives the same tensor twice to a function that writes it and gives it back: each call would
change it further, whatever is cloned.

Tried is the operand that the text names, or that the field says; then all of them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial

from noclobber.mend.change import LAST_RESORT, Change
from noclobber.mend.copies.own_bytes import SHARES
from noclobber.mend.holders.giving import asking, given_for
from noclobber.mend.holders.holding import aliases, is_new, keeps_nothing, may_get_another, writes_through
from noclobber.mend.holders.making import (
    FUNCTIONS,
    MODULES,
    function_called,
    is_function,
    is_method,
    is_tensors,
    module_called,
    module_gives_new,
    module_writes,
    passes_on,
)
from noclobber.mend.holders.numbers import may_be_number
from noclobber.mend.holders.seen import holders_at, is_in_comprehension
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Cure
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import without_indexes
from noclobber.model.seen.operators import NODES, OPERANDS, SPLITS, nodes_of
from noclobber.model.units import listed
from noclobber.rules.shared.keeps import row_of
from noclobber.rules.shared.wording import stem
from noclobber.syntax.edits import append
from noclobber.syntax.names import (
    attributes,
    attributes_set,
    called,
    called_by,
    calls,
    definition,
    differentiates,
    dotted,
    first_name,
    has_stars,
    imported,
    indexes,
    is_stored,
    keyword,
    last_name,
    mentioned,
    names_in,
    names_used,
    only_binding,
    optimizer_of,
    owner,
    parameters,
    returned,
    root_of,
    uses,
    value_given,
    values,
)
from noclobber.syntax.tree import FOR, FUNCTION, File, Place, Scope, functions, walk
from noclobber.syntax.writes import (
    NAMESPACES,
    OPERATORS,
    Form,
    WriteSyntax,
    base_of,
    is_flagged,
    is_namespace,
    tensors_given,
    writes,
)

_FIRST = ("self", "input", "mat1")
_SECOND = ("other", "mat2", "vec2", "vec", "weight", "exponent", "tensor")
_RESULTS = ("result", "output", "out")
"""Fields of what is the first operand, the second operand and the result."""
_MAYBE = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare)
"""What may be a tensor."""


def kept_as_clone(scene: Scene) -> Iterator[Change]:
    """`f(x.clone())` where autograd keeps the operand, `f(x).clone()` where it keeps the result."""
    if (scene.is_clobber or scene.is_refused) and not scene.is_unseen and not _goes_round(scene):
        yield from cloned(scene)


def _goes_round(scene: Scene) -> bool:
    """Return True if the turns of a loop go backward through a graph of an earlier one, and step weights in between.

    With a clone they would all go on with the weights that it was built with, which nobody means, but where each turn
    has an optimizer of its own.
    """
    event, step = scene.finding.event, scene.place("write")
    if step is None or not isinstance(event, Clobber):
        return False
    stepped = re.split(r"\W", optimizer_of(step.row))[0]
    in_turn = any(isinstance(one, FOR) and stepped in names_in(one.target) for one in step.file.loops(step.row))
    return (scene.steps() and bool(event.carried)) or (scene.reads_first() and not in_turn)


def cloned(scene: Scene) -> Iterator[Change]:
    """The same for any write: the loss follows it, the gradient leaves it out."""
    save = scene.finding.save
    if save is not None and (found := _sound(scene, stem(save.node), save.field)) is not None:
        yield found
    cost = LAST_RESORT + 3 if scene.steps() or scene.is_hidden else 1 if scene.code == "NC102" else 2
    cost = 5 if scene.is_refused and scene.code != "NC306" else cost
    field, is_result = (save.field, save.is_output) if save is not None else ("", False)
    for place in scene.places("save"):
        if field in _RESULTS or is_result:
            if isinstance(place.node, ast.expr) and not _is_target(place):
                edit = append(place.file, place.node, ".clone()")
                yield Change("go on with a clone of what autograd keeps", (edit,), cost)
            continue
        operands = _operands(place, field)
        chosen = _kept(operands, field, scene)
        if not chosen:
            continue
        for some in dict.fromkeys((tuple(chosen), tuple(operands))):
            names = ", ".join(f"`{place.file.source(one)}`" for one in some)
            clones = tuple(append(place.file, one, ".clone()") for one in some)
            yield Change(f"let autograd keep a clone of {names}", clones, cost)


def _operands(place: Place, field: str) -> list[ast.expr]:
    """The tensors that an operation takes, for all that the text shows; of a part that is written, its index."""
    node = place.node
    if isinstance(node, ast.UnaryOp):
        found: list[ast.expr] = [node.operand]
    elif isinstance(node, ast.AugAssign):
        found = [node.value]
    elif isinstance(node, ast.Call) and called(node) not in ("grad", "backward"):
        given = _parts([*node.args, *(one.value for one in node.keywords if one.arg is not None)])
        found, of = [one for one in given if not isinstance(one, ast.Starred)], owner(node)
        is_module = dotted(of) == "self" or (isinstance(of, ast.Name) and of.id[:1].isupper())
        if of is not None and not is_namespace(of) and not is_module:  # `x.mul(y)`, and not `self.net(y)`
            found = [of, *found]
    elif isinstance(node, ast.Subscript):
        found = indexes(node) if _is_target(place) or field == "indices" else [node.value]
    else:
        found = [node.left, node.right] if isinstance(node, ast.BinOp) else []
    writing = [one for one in found if any(writes(each) for each in walk(one, ast.Call))]
    return [one for one in found if isinstance(one, _MAYBE) and one not in writing]


def _kept(operands: list[ast.expr], field: str, scene: Scene) -> list[ast.expr]:
    """The operand that the saved field names; by the tensor's own name where that is in the text.

    A weight or buffer that the text does not name is one of a module called here: no operand is it.
    """
    short = scene.name.rpartition(".")[2]
    named = [one for one in operands if short and dotted(base_of(one)).rpartition(".")[2] == short]
    if named or scene.kind == "parameter":
        return named
    if field in _SECOND and len(operands) > 1:
        return operands[1:2]
    return operands[:1]


def _is_target(place: Place) -> bool:
    return isinstance(place.row, ast.Assign) and place.node in place.row.targets


def _sound(scene: Scene, node: str, field: str) -> Change | None:
    """The clone where the source is one operator whose operands, or whose result, the node is known to keep."""
    place, event = scene.place("save"), scene.finding.event
    if not isinstance(event, Clobber) or scene.code == "NC105" or place is None or _is_meant(scene):
        return None
    step = scene.place("write")
    if scene.steps() and step is not None and isinstance(step.node, ast.Call) and step.node.args:
        return None  # each backward would run through the graph that the closure found
    if _carries_on(scene, place.file):
        return None
    file, save = place.file, place.node
    if isinstance(save, ast.AugAssign):
        return _of_factor(scene, file, save)
    if not isinstance(save, ast.expr):
        return None
    if scene.unchecked == "ctx":  # a clone in `forward` has no graph
        is_plain = scene.is_constant or not any(map(differentiates, scene.files))
        return _kept_by_ctx(scene, file, save) if is_plain else None
    operands = [_operand(file, save, node, one) for one in scene.finding.fields]
    kept = list(dict.fromkeys(one for one in operands if one is not None))
    if None in operands:
        kept = [] if set(scene.finding.fields) & set(_RESULTS) else _given(place, scene)
    splits = [one for one in map(partial(_split_of, file), kept) if one is not None]
    if splits and None not in operands:
        return _of_a_clone(file, splits[0])
    if any(may_be_number(file, one) for one in kept if not _is_only_given(file, save, one)):
        return None  # in another call
    if kept:
        texts = dict.fromkeys(file.source(one) for one in kept)
        edits = tuple(append(file, one, ".clone()") for one in kept)
        clones = "a clone" if len(kept) == 1 else "clones"
        title = f"let autograd keep {clones} of {listed([f'`{one}`' for one in texts])}"
        return Change(title, edits, 2, Cure.CLONE_FOR_READER, is_sound=True)
    if field in ("result", "output") and _gives_what_it_saves(file, save, node):
        title = "write into a clone of the result, and let autograd keep the original"
        return Change(title, (append(file, save, ".clone()"),), 2, Cure.CLONE_FIRST, is_sound=True)
    return None


def _is_only_given(file: File, save: ast.expr, operand: ast.expr) -> bool:
    """Whether a function or a module of PyTorch is given one operand alone, which is then no number: `torch.log(x)`."""
    if not isinstance(save, ast.Call) or save.args != [operand]:
        return False
    return last_name(owner(save)) in NAMESPACES or module_called(file, save) is not None


def _of_factor(scene: Scene, file: File, save: ast.AugAssign) -> Change | None:
    """`a[t] /= s[t].clone()`, where `s` is what is written, and `a` is not."""
    names = {one.name for one in scene.writes() if one.name and _is_known_at(one, file, save)}
    names -= {*parameters(file.scope(save))}  # another call may give numbers
    if dotted(base_of(save.value)) not in names or dotted(base_of(save.target)) in names:
        return None
    title = f"let autograd keep a clone of `{file.source(save.value)}`"
    return Change(title, (append(file, save.value, ".clone()"),), 2, Cure.CLONE_FOR_READER, is_sound=True)


def _split_of(file: File, part: ast.expr) -> ast.Assign | None:
    """`a, b = x.unbind(-1)` for `a`, where `b` is read too: a write to `x` spoils both, and PyTorch refuses one after
    the other."""
    scope = file.scope(part)
    stored = uses(scope, part.id, ast.Store) if isinstance(part, ast.Name) else []
    row = file.statement(stored[0]) if len(stored) == 1 else None
    if not isinstance(row, ast.Assign) or called(row.value) not in SPLITS or not isinstance(row.targets[0], ast.Tuple):
        return None
    others = (one.id for one in walk(row.targets[0], ast.Name) if one is not stored[0])
    return row if any(uses(scope, one, ast.Load) for one in others) else None


def _of_a_clone(file: File, split: ast.Assign) -> Change | None:
    """`a, b = x.clone().unbind(-1)`, where nothing keeps the parts or writes to them."""
    call, scope = split.value, file.scope(split)
    if not isinstance(call, ast.Call):
        return None
    of = next(iter(tensors_given(call)), None)
    names = [one.id for one in walk(split.targets[0], ast.Name)]
    read = [one for name in names for one in uses(scope, name, ast.Load)]
    if of is None or not all(keeps_nothing(file, one, returned=False) for one in read):
        return None
    if any(list(writes_through(file, scope, name)) for name in names):
        return None
    title = f"split a clone of `{file.source(of)}`"
    return Change(title, (append(file, of, ".clone()"),), 2, Cure.CLONE_FOR_READER, is_sound=True)


def _kept_by_ctx(scene: Scene, file: File, kept: ast.expr) -> Change | None:
    """`ctx.mask = mask.clone()`, of what a `forward` is given, or has computed or filled, and does not write again; and
    the class only reads it."""
    value, scope, around = value_given(file, kept), file.scope(kept), file.class_of(kept)
    row, name = file.statement(kept), dotted(value)
    if not isinstance(kept, ast.Attribute) or value is None or not name or around is None:
        return None
    bound = only_binding(file, scope, name)
    made = bound.value if bound is not None else None
    if not isinstance(scope, FUNCTION) or row not in scope.body:
        return None
    asks = next(walk(around, ast.Is, ast.IsNot), None) is not None or calls(around, "is_tensor", "isinstance", "stack")
    if asks or scope.args.defaults:
        return None  # another call may give none, a number, or a list
    below = [one for each in scope.body[scope.body.index(row) + 1 :] for one in walk(each, ast.AST)]
    called_below = [one for one in below if isinstance(one, ast.Call)]
    is_over = all(
        is_function(one) or is_tensors(file, one) or dotted(owner(one)) == "ctx" or _writes_what_is_new(file, one)
        for one in called_below
    )
    if not is_over or any(isinstance(one, (ast.AugAssign, ast.Subscript)) for one in below):
        return None
    for one in attributes(around, kept.attr, last_name(value)):
        is_kept = one.attr == kept.attr and dotted(one.value) in parameters(file.scope(one))[:1]
        is_source = file.scope(one) is scope and dotted(one) == name
        if one is not kept and not is_source and not (is_kept and _is_only_read(file, one)):
            return None
    filled = [one.name for one in scene.writes() if one.file.scope(one.statement) is scope]
    sets = [one for one in attributes_set(file, name.rpartition(".")[2]) if "." in name and one is not kept]
    put_there = [value_given(file, one) for one in sets]
    if not all(isinstance(one, ast.Call) and is_function(one) for one in put_there):
        return None  # another object may have a number there, or an array
    is_computed = last_name(owner(made)) in NAMESPACES and called(made) in FUNCTIONS
    if name not in (*parameters(scope), *filled) and not is_computed:
        return None
    at = parameters(scope).index(name) - 1 if name in parameters(scope) else -1  # a number has no `clone`
    applied = [one for one in calls(file.tree, "apply") if last_name(owner(one)) == around.name]
    given = [one for call in applied for one in call.args[at : at + 1]]
    if at >= 0 and (not given or any(may_be_number(file, one) for one in given)):
        return None
    return Change(f"keep a clone of `{name}`", (append(file, value, ".clone()"),), 2, is_sound=True)


def _writes_what_is_new(file: File, call: ast.Call) -> bool:
    """`phase.sin_()`, of a variable that is bound once, to a new tensor."""
    of = owner(call)
    bound = only_binding(file, file.scope(call), of.id) if isinstance(of, ast.Name) else None
    return writes(call) and bound is not None and is_new(file, bound.value)


def _is_only_read(file: File, kept: ast.Attribute) -> bool:
    """Return True if an operator reads what a `ctx` keeps, or a view of it."""
    node: ast.AST = kept
    while (
        isinstance(above := file.above[node], ast.Attribute)
        or (isinstance(above, ast.Call) and above.func is node)
        or (isinstance(above, ast.Subscript) and above.value is node and isinstance(above.ctx, ast.Load))
    ):
        if isinstance(above, ast.Call) and writes(above):
            return False
        node = above
    by_operator = isinstance(above, ast.Call) and (is_function(above) or is_method(above) or writes(above))
    return by_operator or isinstance(above, (ast.BinOp, ast.Compare))


def _carries_on(scene: Scene, file: File) -> bool:
    """Return True if the write leaves a graph in an attribute that the file, after `__init__`, neither sets nor
    detaches: the next backward fails on that, whatever is cloned now."""
    tensor = scene.finding.tensor
    in_functions = all("ctx" in parameters(one.file.scope(one.statement)) for one in scene.writes())
    if tensor is None or not tensor.is_state or in_functions:
        return False
    last = without_indexes(tensor.name or "").removesuffix("[]").rpartition(".")[2]
    held = (one for one in attributes(file.tree, last) if getattr(file.scope(one), "name", "") != "__init__")
    return not any(_cuts(file, one) for one in held)


def _cuts(file: File, held: ast.Attribute) -> bool:
    """`self.state = None` where more than `__init__` runs it, or `self.state.detach_()`; neither
    `self.state = f(self.state)` nor what `if self.state is None:` sets once."""
    above, row, scope = file.above[held], file.nearest(held, ast.stmt), file.scope(held)
    if isinstance(above, ast.Attribute) and above.attr == "detach_":
        return True
    if not is_stored(file, held) or not isinstance(row, ast.Assign):
        return False
    goes_on = held.attr in names_used(row.value) and "detach" not in names_used(row.value)
    once = any(isinstance(one, ast.If) and held.attr in names_used(one.test) for one in file.around(row))
    name = getattr(scope, "name", "forward")
    callers = (getattr(file.scope(one), "name", "") for one in calls(file.tree, name))
    runs = name == "forward" or any(one != "__init__" for one in callers)
    return runs and not goes_on and not once


def _is_meant(scene: Scene) -> bool:
    """Return True if the write may be meant as a part of the function, or may be a mistake that other code also sees.

    So it may where a value is given through `.data` or `.detach()` to what is in the graph, and where a tensor is added
    to more than once, as when two modules are handed the same one: then no source tells what is right. Unless a
    function writes, by a variable, what it has made itself, or was given by a caller that reads it no more.
    """
    finding = scene.finding
    written = [one for one in finding.writes if one.overlaps]
    if any(one.via in ("set_data", "swap") or one.op in _MOVING for one in finding.writes):
        return True  # what the name then holds is another memory: more than one save may be concerned
    if written and written[0].via == "data" and scene.kind == "tensor" and not scene.is_constant:
        return True
    root, found = next((root_of(one.target) for one in scene.writes()[:1]), None), scene.place("write")
    if found is not None:
        file, write = found.file, found.statement
        if scene.kind == "tensor" and _is_detached(file, definition(file, root, found.row)):
            return True
        if isinstance(root, ast.Name) and _is_given_again(file, root.id, file.scope(root)):
            return True  # each call changes it further
        target = write.targets[0] if isinstance(write, ast.Assign) else getattr(write, "target", None)
        if isinstance(target, ast.Subscript):
            return False
    if finding.save is None or scene.kind != "tensor":
        return False
    again = Counter((one.op, one.site) for one in sorted(written, key=lambda one: one.order))
    places = [one for one in again if one[0] in _ADDING]
    begun = next(iter(again), ("", None))
    if begun[0] not in _ADDING and all(again[one] <= again[begun] for one in places):
        return False  # each call fills the tensor anew
    if any(again[one] > 1 for one in places):
        return True
    if not places or finding.save.version == 0 or found is None:
        return False
    if not isinstance(root, ast.Name) or scene.writes()[0].name != root.id:
        return True
    held = holders_at(finding, found.file, found.row) or ()
    is_kept = any(not one.name.isidentifier() for one in held)
    return is_kept or not may_get_another(found.file, root.id, found.row, [root.id], None)


def _is_detached(file: File, value: ast.expr | None) -> bool:
    """Return True for `h.detach()` and for views of it."""
    while value is not None and called(value) != "detach":
        value = passes_on(file, value)
    return value is not None


def _is_given_again(file: File, name: str, function: Scope) -> bool:
    """Return True if the file gives a function the same tensor for a parameter more than once, and each time goes on
    with what the function gives back."""
    if not isinstance(function, FUNCTION) or name not in parameters(function):
        return False
    if name not in map(dotted, returned(function)):
        return False
    with asking(function) as is_first:
        given = [one for one in given_for(file, name, function) if isinstance(one, ast.Name)] if is_first else []
        named = [(one.id, file.scope(one)) for one in given]
        if len(set(named)) < len(named) or any(_is_in_turns(file, one) for one in given):
            return True
        return any(_is_given_again(file, one, scope) for one, scope in named)


def _is_in_turns(file: File, use: ast.Name) -> bool:
    """Return True if the turns of a loop, or of a comprehension, use what a name was bound to before it."""
    loops = list(file.loops(use))
    in_loop = bool(loops) and not any(uses(one, use.id, ast.Store) for one in loops)
    return in_loop or is_in_comprehension(file, use)


_MOVING = tuple(f"aten::{name}_" for name in ("set", "resize", "resize_as", "transpose", "t", "squeeze", "unsqueeze"))
"""Operators that change where a tensor looks."""
_ADDING = tuple(
    f"aten::{name}_" for name in ("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "clamp", "relu")
)


def _operand(file: File, save: ast.expr, node: str, field: str) -> ast.expr | None:
    """Return the operand that a node saves in a field, if the text can clone it there."""
    name = OPERATORS[type(save.op)][2] if isinstance(save, ast.BinOp) else called(save)
    which, operands = _position(name.rstrip("_"), field), _operands_of(file, save, node)
    if field == "target" and isinstance(save, ast.Call) and not has_stars(save):
        which, operands = 0, _targets(file, save)
    if which is None or (not which and name.endswith("_")):  # a clone of what is written would take the write
        return None
    named = keyword(save, field) if isinstance(save, ast.Call) and operands else None
    operand = named.value if named is not None else operands[which] if which < len(operands) else None
    return None if isinstance(operand, (ast.Constant, ast.Starred, ast.Await, ast.Yield)) else operand


def _position(name: str, field: str) -> int | None:
    """Return which operand of an operator its node saves in a field."""
    if name in OPERANDS:
        order = OPERANDS[name].split()
        return order.index(field) if field in order else None
    is_second = field in _SECOND and (field != "weight" or name in NODES)  # the weight of a loss comes third
    return 0 if field in _FIRST else 1 if is_second else None


def _operands_of(file: File, save: ast.expr, node: str) -> list[ast.expr]:
    if isinstance(save, ast.BinOp):
        # `2 * h` calls the operator of `h`, which is then the first operand.
        plain = not isinstance(save.left, (ast.Constant, ast.UnaryOp))
        return [save.left, save.right] if plain and _keeps_operands(OPERATORS[type(save.op)][2], node) else []
    if not isinstance(save, ast.Call) or has_stars(save) or is_flagged(save):
        return []
    made = module_called(file, save)
    if made is not None:
        return save.args[:1] if _keeps_operands(called(made), node) else []
    if not _keeps_operands(called(save), node) or keyword(save, "out") is not None:
        return []
    of = owner(save)
    if of is None or (last_name(of) not in NAMESPACES and (dotted(of) == "self" or called(save) == "where")):
        return []  # `x.where(condition, y)` has another order
    is_own = any(one.name == called(save) for one in functions(file.tree))
    if last_name(of) not in NAMESPACES and (is_own or first_name(of) in imported(file)):
        return []  # a method of the file; `special.expm1(x)`
    return list(save.args) if last_name(of) in NAMESPACES else [of, *save.args]


def _targets(file: File, call: ast.Call) -> list[ast.expr]:
    """The target that a loss of PyTorch is given, a function or a module: its second argument."""
    made, named = module_called(file, call), keyword(call, "target")
    is_loss = called(made) in MODULES and called(made).endswith("Loss")
    if not is_loss and (made is not None or last_name(owner(call)) not in NAMESPACES):
        return []
    return [named.value] if named is not None else call.args[1:2]


def _keeps_operands(name: str, node: str) -> bool:
    """Return True if a function, method or module is recorded by a node that keeps what it is given."""
    return node in nodes_of(name) and not _keeps_result(name, node)


def _keeps_result(name: str, node: str) -> bool:
    """Return True if it is recorded by a node that keeps the one tensor that it gives, and nothing else."""
    row = row_of(node) if node in nodes_of(name) else None
    return row is not None and row.fields == "result"


def _gives_what_it_saves(file: File, save: ast.expr, node: str) -> bool:
    if not isinstance(save, ast.Call) or is_flagged(save) or keyword(save, "out") is not None:
        return False
    made = module_called(file, save)
    if made is not None:
        return _keeps_result(called(made), node) and not is_flagged(made)
    return isinstance(save.func, ast.Attribute) and _keeps_result(called(save), node)


def _keeps_in_ctx(file: File, function: ast.FunctionDef) -> bool:
    """Return True if the forward of a Function keeps what it is given, and nothing else, by `ctx.save_for_backward`."""
    given = {*parameters(function)} - {"ctx"}
    saved = [one for call in calls(function, "save_for_backward") for one in call.args]
    if any(not isinstance(one, ast.Name) or one.id not in given for one in saved):
        return False  # what was overwritten may be a tensor of its own
    if any(isinstance(one, (ast.Is, ast.IsNot)) for one in ast.walk(function)) or function.args.defaults:
        return False  # a clone is another tensor
    if any(one.attr in ("is_leaf", "grad") or one.attr.endswith("_ptr") for one in walk(function, ast.Attribute)):
        return False
    uses = [one for one in walk(function, ast.Name) if one.id in given and isinstance(one.ctx, ast.Load)]
    return all(called(file.above[one]) == "save_for_backward" or keeps_nothing(file, one) for one in uses)


def _given(place: Place, scene: Scene) -> list[ast.expr]:
    """Return the arguments of a function or a module of PyTorch, or of a Function of the file, that are the tensor, by
    its name or that of the write: `self.queue` of `torch.einsum("nc,ck->nk", [q, self.queue])`; or the only argument of
    a module that keeps its first operand, or for the memory of an array: the second operand may be a weight; or
    all tensors that a function is given and that may be views of it.

    None where another argument may be a view of it, or where the call may write what it is given.
    """
    file, save = place.file, place.node
    if not isinstance(save, ast.Call) or has_stars(save) or writes(save):
        return []
    made, function = module_called(file, save), function_called(file, save.func, save)
    if made is not None and (not module_gives_new(made) or module_writes(made)):
        return []
    is_of_torch = last_name(owner(save)) in NAMESPACES
    is_own = made is None and function is not None and "ctx" in parameters(function) and is_new(file, save)
    if is_own and function is not None:
        is_own = not any(True for name in parameters(function) for _ in writes_through(file, function, name))
        is_own &= scene.finding.save is not None and not scene.finding.save.is_output
        is_own &= _keeps_in_ctx(file, function)
        is_own &= all(one.file.class_of(one.statement) is not file.class_of(function) for one in scene.writes())
    if made is None and not is_of_torch and not is_own:
        return []
    handed = [one.handed is not None and one.handed.by in SHARES for one in scene.finding.writes]
    is_given = bool(handed and all(handed))
    if set(scene.finding.fields) <= {*_FIRST}:  # no hook has what a module computes inside that the file only calls
        is_given |= all(called_by(file, one) for one in mentioned(file, last_name(save.func)))
    if ((made is not None and is_given and scene.kind == "tensor") or is_own) and len(values(save)) == 1:
        return save.args
    # What a module holds is written in the call of the module: no argument of that call is it.
    told = (one for one in scene.writes() if scene.kind == "tensor" or one.form is not Form.CALL)
    names = {one.name for one in told if one.name and _is_known_at(one, file, save)}
    names |= {f"self.{scene.name.rpartition('.')[2]}"} - {"self."} | _handed_over(scene, file, save)
    parts = _parts(save.args) + [one.value for one in save.keywords]
    found = [one for one in parts if dotted(base_of(one)) in names] or _bound_to(file, parts, names)
    first = save.args[0] if save.args else None
    is_told = called(save) != "einsum" or (isinstance(first, ast.Constant) and isinstance(first.value, str))
    tensors = _TENSORS.get(called(save)) if is_of_torch and is_told and not found else None
    if tensors is not None and set(scene.finding.fields) <= {*_FIRST, *_SECOND, "query", "key", "value"}:
        some = _parts(save.args[tensors])
        is_whole = len(some) >= (tensors.stop or 2) and not any(isinstance(one, ast.Starred) for one in some)
        return [one for one in some if not is_new(file, one)] if is_whole else []
    made_of = [definition(file, base_of(one), save) for one in parts if one not in found]
    return [] if any(dotted(base_of(one)) in names for one in made_of if one is not None) else found


def _handed_over(scene: Scene, file: File, save: ast.AST) -> set[str]:
    """`x` of `x.detach().numpy()`, by which foreign code came by the memory, in the function of a save that binds it
    once."""
    sites = [one.handed.site for one in scene.finding.writes if one.handed is not None and one.handed.site is not None]
    places, scope, names = [scene.at(one.span()) for one in sites], file.scope(save), set[str]()
    for one in (each.node for each in places if each is not None and each.file is file):
        value = owner(one) if file.scope(one) is scope else None
        while inner := owner(value) if called(value) == "detach" else value and passes_on(file, value):
            value = inner
        names |= {value.id} if isinstance(value, ast.Name) else set()
    return {one for one in names if len(uses(scope, one, ast.Store)) + (one in parameters(scope)) == 1}


def _bound_to(file: File, parts: list[ast.expr], names: set[str]) -> list[ast.expr]:
    """Return which of some arguments are names that the function also binds to views of one of these tensors, as
    `step = rows[t]`; none where another argument may be one, by its bindings."""
    found = []
    for one in parts:
        row = file.statement(one)
        bound = uses(file.scope(row), one.id, ast.Store) if isinstance(one, ast.Name) and row is not None else []
        values = [value_given(file, each) for each in bound]
        given = [aliases(file, value) if value is not None else None for value in values]
        if not given or None in given:
            return []
        found += [one] * any(each & names for each in given if each is not None)
    return found


def _parts(given: list[ast.expr]) -> list[ast.expr]:
    return [part for one in given for part in (one.elts if isinstance(one, (ast.List, ast.Tuple)) else [one])]


_TENSORS = {"einsum": slice(1, None), "scaled_dot_product_attention": slice(0, 3)}
"""Functions with names for what they save that say nothing of their arguments: which of these are tensors."""


def _is_known_at(write: WriteSyntax, file: File, save: ast.AST) -> bool:
    """Return True if the name of what is written means the same where the save is: in its function, or by `self`."""
    if write.name.startswith("self."):
        return file.class_of(save) is not None and write.file.class_of(write.statement) is file.class_of(save)
    return write.file.scope(write.statement) is file.scope(save)
