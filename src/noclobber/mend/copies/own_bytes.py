"""Give a tensor bytes of its own: where it is made, after `expand`, for numpy, under `vmap`; make views recorded.

Sound where a function works, aside from autograd, on the memory of a tensor that nothing reads again. And for what
PyTorch refuses because a mapped value is written into a tensor that exists once, so that each sample gets its own: the
program never got further, and what is written stays the same. The tensor is made in the function, by `torch.zeros` or
the like with nothing but its sizes, and no other statement binds the name; the new tensor has the element type that the
old one had. The file names the function only as `torch.vmap(function)(a, b)`, which maps a tensor that it gives.
And where a pack hook itself writes into memory that it returns by a name: a clone of that is new memory, with the same
bytes, which no other call writes. And where a custom Function returns its input, or a view of it, that PyTorch refuses
to write. And what `torch.autograd.grad` returns, where several gradients lie in one memory. All else is tried.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.change import Change, change
from noclobber.mend.holders.giving import asking, given_for
from noclobber.mend.holders.holding import is_new, is_read_last, writes_through
from noclobber.mend.holders.seen import hold_alone, holders_at, is_over
from noclobber.mend.new_tensors.view_writes import is_written_alone, saves_nothing
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Cause, Cure, Edit
from noclobber.model.seen.events import Refusal
from noclobber.model.seen.operators import SPLITS, VIEWS
from noclobber.model.seen.silent import SharedGradient
from noclobber.model.units import listed
from noclobber.rules.shared.texts import function_of
from noclobber.syntax.edits import append, replace, undecorated, unwrapped
from noclobber.syntax.names import (
    bindings,
    call_of,
    called,
    called_by,
    calls,
    definition,
    dotted,
    has_stars,
    imported_from,
    indexes,
    is_plain_index,
    keyword,
    last_name,
    mentions,
    names_stored,
    only_binding,
    owner,
    parameters,
    returned,
    root_of,
    targets,
    uses,
    values,
)
from noclobber.syntax.tree import FOR, FUNCTION, File, Function, Scope, ends, functions, starts, walk, within
from noclobber.syntax.writes import WriteSyntax, base_of, is_number, writes

_EXPANDS = ("expand", "expand_as", "broadcast_to")
_BEFORE_UNUSED = 6
"""Positional arguments of `torch.autograd.grad` before `allow_unused` (torch 2.10 to 2.15)."""
SHARES = ("from_numpy", "as_tensor", "asarray", "frombuffer", "from_dlpack")
"""What gives a tensor on the memory of an array."""


def expanded(scene: Scene) -> Iterator[Change]:
    """`.clone()` after `expand` where the tensor is made: in the function of the write, else anywhere.

    First of all where an object keeps it: it may be written again. Sound where one call alone expands what was seen to
    hold the same memory, and is returned or bound to a variable: the refused write has reached nobody.
    """
    title = "give the expanded tensor its own bytes"
    for write in scene.writes() if scene.code == "NC307" else ():
        cost, made = -1 if "." in write.name else 2, definition(write.file, write.base, write.statement)
        if made is not None and calls(made, *_EXPANDS, "broadcast_tensors", "meshgrid"):
            yield Change(title, (append(write.file, made, ".clone()"),), cost)
            continue
        found = [(file, one) for file in scene.files for one in calls(file.tree, *_EXPANDS)]
        held = {one.name for one in getattr(scene.finding.event, "holders", None) or ()} - {write.name}
        of_held = [one for _, one in found if last_name(owner(one)) in {name.rpartition(".")[2] for name in held}]
        for file, one in sorted(found, key=lambda each: each[1] not in of_held):
            row = file.statement(one)
            is_bound = isinstance(row, ast.Assign) and all(isinstance(each, ast.Name) for each in targets(row))
            is_sound = of_held == [one] and (is_bound or isinstance(row, ast.Return))
            yield Change(title, (append(file, one, ".clone()"),), cost, is_sound=is_sound)


def not_shared(scene: Scene) -> Iterator[Change]:
    """`torch.from_numpy(buf)` with `.clone()`, and `.numpy()` with `.copy()`, where the memory is handed over: one copy
    there serves all that is saved of it."""
    for place in scene.places("create") if scene.code == "NC202" else ():
        for one in [place.node] if isinstance(place.node, ast.Call) else walk(place.row, ast.Call):
            if called(one) in SHARES:
                yield Change("give the tensor its own bytes", (append(place.file, one, ".clone()"),), 0)
            elif called(one) in ("numpy", "__array__"):
                yield Change("give numpy a copy", (append(place.file, one, ".copy()"),), 0)
    for file in scene.files if scene.code == "NC202" else ():
        for one in calls(file.tree, *SHARES):
            yield Change("give the tensor its own bytes", (append(file, one, ".clone()"),), 2)


def own_gradients(scene: Scene) -> Iterator[Change]:
    """`tuple(one.clone() for one in torch.autograd.grad(...))`, where some of these share memory. Sound where each
    gradient is there: nothing but the writes can tell."""
    place = scene.place("create") if isinstance(scene.finding.event, SharedGradient) else None
    if place is None or not isinstance(call := place.node, ast.Call) or called(call) != "grad":
        return
    file = place.file
    is_of_torch = dotted(owner(call)) in ("torch.autograd", "autograd") or "grad" in imported_from(
        file, "torch.autograd"
    )
    bound = names_stored(file.tree) | {name for one in functions(file.tree) for name in parameters(one)}
    may_be_none = len(call.args) > _BEFORE_UNUSED or keyword(call, "allow_unused") is not None or has_stars(call)
    edit = replace(file, call, f"tuple(one.clone() for one in {file.source(call)})")
    is_sound = is_of_torch and "tuple" not in bound and not may_be_none
    yield Change("give each gradient its own memory", (edit,), 1, Cure.OWN_ROWS, is_sound=is_sound)


def apart(scene: Scene) -> Iterator[Change]:
    """`answer = out.data.clone()`, `array = out.detach().numpy().copy()`: a copy for a function that works on what
    shares the memory of a tensor.

    Sound where the program reads the tensor for the last time there. Whatever is written then can be no part of what it
    computes, and only spoils what autograd has saved.
    """
    edits = dict[Edit, str]()
    for write in scene.writes():
        given = _sources(scene, write)
        shown = [_shown_aside(one) for one in given]
        is_last = all(is_read_last(write.file, one) for one in shown if one) or _is_written_alone(scene, write, shown)
        if not given or None in shown or not is_last:
            return
        for one in given:
            copy = ".copy()" if calls(one, "numpy") else ".clone()"
            edits[append(write.file, one, copy)] = write.name
    if edits and not scene.is_refused:
        names = [f"`{one}`" for one in dict.fromkeys(edits.values())]
        whose = "its own" if len(names) == 1 else "their own"
        yield Change(f"give {listed(names)} bytes of {whose}", tuple(edits), 1, is_sound=True)


def _sources(scene: Scene, write: WriteSyntax) -> list[ast.expr]:
    """What the written name is bound to in its function; of an argument, all that the file gives for it.

    Nothing where another file plays a part, or where the call that was seen is none of these.
    """
    file = write.file
    calls = [scene.at(one.span()) for one in scene.finding.calls[-2:]]
    if any(one is None or one.file is not file for one in (*calls, *scene.places("save", "write", "read"))):
        return []
    scope, root = file.scope(write.statement), root_of(write.target)
    if not isinstance(root, ast.Name):
        return []
    if root.id in parameters(scope):
        given, caller = given_for(file, root.id, scope), calls[-2] if len(calls) > 1 else None
        is_other = caller is not None and caller.statement not in [file.statement(one) for one in given]
        return given if not is_other and not bindings(file, scope, root.id) else []
    row = only_binding(file, scope, root.id)
    return [row.value] if row is not None else []


def _shown_aside(value: ast.expr | None) -> ast.Name | None:
    """`out` of `out.data[0]` and of `out.detach().numpy()`, which share its memory, unknown to autograd."""
    is_shared = False
    while isinstance(value, (ast.Attribute, ast.Call, ast.Subscript)):
        is_shared |= last_name(value) == "data" or called(value) in ("detach", "numpy")
        if isinstance(value, ast.Call) and (values(value) or called(value) not in ("detach", "numpy", "cpu")):
            return None
        if isinstance(value, ast.Attribute) and value.attr != "data":
            return None
        value = owner(value) if isinstance(value, ast.Call) else value.value
    return value if is_shared and isinstance(value, ast.Name) else None


def _is_written_alone(scene: Scene, write: WriteSyntax, shown: list[ast.Name | None]) -> bool:
    """Return True if nothing that was seen to hold what is written reads it later, but by the written name, and the
    function writes it only where the finding says."""
    file, scope, row = write.file, write.file.scope(write.statement), write.statement
    held, name = holders_at(scene.finding, file, row), write.name.partition(".")[0]
    names = {name, *(one.id for one in shown if one is not None)}
    rows = [one.statement for one in scene.writes()]
    alone = all(one in rows for each in names for one in writes_through(file, scope, each))
    is_alone = alone and held is not None and hold_alone({name}, file, row, held)
    return is_alone and all(one is not None and _is_given_for_last(file, one) for one in shown)


def _is_given_for_last(file: File, shown: ast.Name) -> bool:
    """Return True if each call that the file makes gives a parameter a tensor, or a part of one, that it has just got
    from a call and reads no more. In other runs than those looked at it may give what is meant to be written."""
    scope = file.scope(shown)
    if shown.id not in parameters(scope):
        return True
    with asking(scope) as is_first:
        given = given_for(file, shown.id, scope) if is_first else []
        return bool(given) and all(is_new(file, one) or _is_got_and_over(file, one) for one in given)


def _is_got_and_over(file: File, given: ast.expr) -> bool:
    root, row = root_of(given), file.statement(given)
    if not isinstance(root, ast.Name) or row is None or not is_over(file, root.id, row, given):
        return False
    scope = file.scope(given)
    bound = [file.statement(each) for each in uses(scope, root.id, ast.Store)]
    if not bound and root.id in parameters(scope):
        return _is_given_for_last(file, root)
    return bool(bound) and all(isinstance(one, ast.Assign) and isinstance(one.value, ast.Call) for one in bound)


def packed_apart(scene: Scene) -> Iterator[Change]:
    """`return slot.clone()` for the `return slot` of a pack hook that fills a slot which it uses again.

    The hook has no other use for the slot, and neither hook asks which tensor it is."""
    for write in scene.writes() if scene.unchecked == "packed" else ():
        file, scope, slot = write.file, write.file.scope(write.statement), write.target
        if not isinstance(scope, FUNCTION) or not isinstance(slot, ast.Name) or write.statement not in scope.body:
            continue
        back = [one for one in returned(scope) if dotted(one) == slot.id]
        others = [one for one in uses(scope, slot.id, ast.Load) if one is not slot and one not in back]
        hooks = _hooks(file, scope)
        if not back or others or not hooks or any(starts(one) < ends(write.statement) for one in back):
            continue
        nodes = [one for each in hooks for one in ast.walk(each)]
        asked = [one for one in nodes if isinstance(one, ast.Is) or called(one) == "id" or called(one).endswith("_ptr")]
        if not asked and next(walk(scope, ast.Try), None) is None:
            edits = tuple(append(file, one, ".clone()") for one in back)
            yield Change("let the pack hook return memory of its own", edits, 1, Cure.CLONE_VALUE, is_sound=True)


def _hooks(file: File, pack: Function) -> list[Function | ast.Lambda]:
    """The two functions that the file gives `saved_tensors_hooks`, if one of them is this one and both are its own."""
    given = [one for one in calls(file.tree, "saved_tensors_hooks") if last_name(one.args[0]) == pack.name]
    names = {last_name(one) for each in given for one in each.args}
    found: list[Function | ast.Lambda] = [one for one in functions(file.tree) if one.name in names]
    found += [one for each in given for one in each.args if isinstance(one, ast.Lambda)]
    return found if len(given) == 1 and len(found) == len(given[0].args) == 2 else []


def returned_apart(scene: Scene) -> Iterator[Change]:
    """`return x.clone()` for the `return x.view_as(x)` or `return x` of a custom Function's `forward`.

    PyTorch refuses to write a view of its input, and lets the program write a clone.
    """
    event = scene.finding.event
    name = function_of(event.message) if scene.code == "NC305" and isinstance(event, Refusal) else ""
    for file in scene.files if name else ():
        for forward in (one for one in functions(file.tree) if one.name == "forward"):
            around, rows = file.class_of(forward), [*walk(forward, ast.Return)]
            if around is None or around.name != name or len(rows) != 1 or calls(forward, "mark_dirty"):
                continue
            views = [one for one in returned(forward) if dotted(base_of(one)) in parameters(forward)[1:]]
            edits = [replace(file, one, f"{dotted(base_of(one))}.clone()") for one in views if called(one) == "view_as"]
            edits += [append(file, one, ".clone()") for one in views if called(one) != "view_as"]
            title = f"let `{name}` return a clone of its input, and no view"
            yield from change(title, edits, 2, Cure.CLONE_VALUE, is_sound=True)


def recorded_views(scene: Scene) -> Iterator[Change]:
    """Take the `with` off statements that make views, or the decorator from a function that does; a list of views that
    it returns becomes a generator.

    A view that was taken before another view of the same tensor is written is stale: they have to come one by one.
    Sound where the files make such views in one place, which does nothing else, and PyTorch takes the write then.
    """
    written = scene.writes() if scene.code == "NC304" else []
    found = list[tuple[File, str, tuple[Edit | None, ...], list[ast.stmt]]]()
    for file in dict.fromkeys([*(write.file for write in written), *(scene.files if written else ())]):
        for block in walk(file.tree, ast.With):
            nodes = [one for row in block.body for one in ast.walk(row)]
            writing = any(isinstance(one, ast.Call) and writes(one) for one in nodes)
            writing |= any(write.node in nodes for write in written)
            if not writing and [called(one.context_expr) for one in block.items] in (["no_grad"], ["inference_mode"]):
                found.append(
                    (file, "make these views with gradients recorded", tuple(unwrapped(file, block)), block.body)
                )
        for function in functions(file.tree):
            taken = calls(function, *VIEWS, *SPLITS) != []
            inside = any(function in file.around(write.node) for write in written)
            if inside or not (taken or any(True for _ in walk(function, ast.Subscript))):
                continue
            for one in function.decorator_list:
                if called(one) not in ("no_grad", "inference_mode"):
                    continue
                gone, title = undecorated(file, one), f"make the views of `{function.name}` with gradients recorded"
                found.append((file, title, (gone,), function.body))
                lists = [each.value for each in walk(function, ast.Return) if isinstance(each.value, ast.ListComp)]
                lazy = [replace(file, each, f"({file.source(each)[1:-1]})") for each in lists]
                if lazy:
                    found.append((file, f"{title}, one at a time", (gone, *lazy), function.body))
    is_taken = len(found) == 1 and scene.may_be_recorded
    for file, title, edits, body in found:
        is_sound = is_taken and all(map(_takes_views, body)) and _are_only_written(scene, file, body)
        yield from change(title, edits, 2, is_sound=is_sound)


def _takes_views(row: ast.stmt) -> bool:
    """Whether a statement binds or returns views that are taken one by one, and does nothing else."""
    value = row.value if isinstance(row, (ast.Assign, ast.Return)) else None
    parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
    return all(
        one is not None
        and (called(one) in VIEWS or (isinstance(one, ast.Subscript) and all(map(is_plain_index, indexes(one)))))
        and all(called(call) in VIEWS for call in walk(one, ast.Call))
        for one in parts
    )


def _are_only_written(scene: Scene, file: File, body: list[ast.stmt]) -> bool:
    """Whether the views that some statements take are only written, by statements that save nothing of them: by their
    names, or where the one call of the function gives them."""
    scope = file.scope(body[0])
    bound = [one.id for row in body if isinstance(row, ast.Assign) for one in walk(row.targets[0], ast.Name)]
    given = [each for row in within(scope, ast.Return) for each in walk(row, ast.Name, ast.Subscript)]
    read = [use for name in bound for use in uses(scope, name) if file.statement(use) not in body]
    if not all(_is_only_written(file, use) for use in read if use not in given):
        return False
    if not given:
        return True
    named = [(each, one) for each in scene.files for one in mentions(each, getattr(scope, "name", ""))]
    calls = [(each, called_by(each, one)) for each, one in named]
    return len(calls) == 1 and all(call is not None and _is_given_to_writes(each, call) for each, call in calls)


def _is_only_written(file: File, use: ast.Name) -> bool:
    return is_written_alone(file, use) and saves_nothing(file.statement(use))


def _is_given_to_writes(file: File, call: ast.Call) -> bool:
    """`for edge in edges(h): edge *= 2`, `edge(h).add_(1)`."""
    above = file.above[call]
    if isinstance(above, FOR) and above.iter is call and isinstance(above.target, ast.Name):
        used = [one for one in uses(file.scope(above), above.target.id) if one is not above.target]
        return all(_is_only_written(file, one) and file.statement(one) in above.body for one in used)
    written = called_by(file, above) if isinstance(above, ast.Attribute) else None
    return written is not None and call_of(file.above[written]) is written and saves_nothing(file.statement(written))


_MAKERS = ("torch.zeros", "torch.ones", "torch.empty", "torch.full")


def made_from_mapped(scene: Scene) -> Iterator[Change]:
    """`torch.zeros(n)` as `x.new_zeros(n)`, of an argument `x` that is mapped."""
    for write in scene.writes() if scene.is_refused else ():
        file, scope, name = write.file, write.file.scope(write.statement), write.name
        made = definition(file, write.base, write.statement)
        is_under = scene.code == "NC310" or mentions(file, "vmap")
        if not isinstance(made, ast.Call) or dotted(made.func) not in _MAKERS or not is_under:
            continue
        own = parameters(scope)
        maker, dtype = f"new_{called(made)}", scene.finding.tensor.dtype if scene.finding.tensor else ""
        is_known = scene.finding.cause is Cause.UNMAPPED and only_binding(file, scope, name) is not None
        is_known &= bool(made.args) and not made.keywords and not has_stars(made)
        # What a branch asks of the new tensor before the write would be mapped, too.
        is_known &= all(starts(one) >= starts(write.statement) for one in uses(scope, name, ast.Load))
        value = write.statement.value if isinstance(write.statement, ast.Assign) else None
        names = [one.id for one in walk(value, ast.Name)] if value is not None else []
        only = names if len(names) == 1 else []
        mapped = next((one for one in (*only, *own) if _maps(file, scope, one)), "")
        if is_known and dtype and mapped and not bindings(file, scope, mapped):
            sizes = ", ".join(file.source(one) for one in made.args)
            text = f"{mapped}.{maker}({sizes}, dtype=torch.{dtype.removeprefix('torch.')})"
            title = f"make `{name}` from `{mapped}`, which is mapped"
            yield Change(title, (replace(file, made, text),), 1, Cure.OWN_ROWS, is_sound=True)
        written = write.call if write.call is not None else getattr(write.statement, "value", None)
        named = [one.id for one in walk(written, ast.Name) if one.id in own] if written is not None else []
        for argument in dict.fromkeys([*named, *own]):
            title = f"make `{name}` from `{argument}`, which is mapped"
            yield Change(title, (replace(file, made.func, f"{argument}.{maker}"),), 1)


def _maps(file: File, scope: Scope, name: str) -> bool:
    """Return True if a parameter of a function is mapped, and is a tensor, wherever the file calls it."""
    if not isinstance(scope, FUNCTION) or isinstance(file.above[scope], ast.ClassDef) or name not in parameters(scope):
        return False
    named, at = mentions(file, scope.name), parameters(scope).index(name)
    mapped = [one for one in named if called(file.above[one]) == "vmap"]
    if len(mapped) != len(calls(file.tree, "vmap")):
        return False  # what another one maps may be written, too
    plain = [called_by(file, one) for one in named if one not in mapped]
    return all(_is_mapped(file, one, at) for one in mapped) and all(_is_given_tensor(file, one, at) for one in plain)


def _is_mapped(file: File, mention: ast.expr, at: int) -> bool:
    """`torch.vmap(function)(a, b)` around a mention of the function, also with `in_dims`, that maps the argument at a
    place. A dict or tuple of tensors would be mapped, too."""
    mapping = file.above[mention]
    call = called_by(file, mapping)
    if not isinstance(mapping, ast.Call) or called(mapping) != "vmap" or mapping.args != [mention]:
        return False
    given = keyword(mapping, "in_dims")
    dims = given.value if given is not None else ast.Constant(0)
    dims = dims.elts[at] if isinstance(dims, ast.Tuple) and at < len(dims.elts) else dims
    if len(mapping.keywords) > (given is not None) or not is_number(dims):
        return False
    return _is_given_tensor(file, call, at)


def _is_given_tensor(file: File, call: ast.Call | None, at: int) -> bool:
    return call is not None and at < len(call.args) and not has_stars(call) and _is_tensor(file, call.args[at])


def _is_tensor(file: File, value: ast.expr) -> bool:
    """Return True for what makes a new tensor, and for a name that is bound to that alone."""
    if isinstance(value, ast.Name):
        rows = [only_binding(file, scope, value.id) for scope in (file.scope(value), file.tree)]
        made = next((one for one in rows if one is not None), None)
        return made is not None and isinstance(made.targets[0], ast.Name) and is_new(file, made.value)
    return is_new(file, value)
