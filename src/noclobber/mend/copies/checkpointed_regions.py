"""Regions of `torch.utils.checkpoint`: run on tensors that no write can reach, and run again as they ran before.

Sound where a region that closes over a tensor, or reads it from `self`, is given a copy, and nothing else in the file
reads that; where an argument that other code writes is cloned; where a module is called on a copy of its buffer, which
it does not write itself; and where a region is called without `checkpoint`, and nothing that it saved was written. All
other changes are tried.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from noclobber.mend.change import Change
from noclobber.mend.copies.own_copies import ELSEWHERE, OWN, copies_of
from noclobber.mend.holders.holding import is_new, keeps_nothing
from noclobber.mend.holders.placing import WITHOUT_NAMES
from noclobber.mend.new_tensors.view_writes import is_written_alone
from noclobber.mend.scene import Scene
from noclobber.model.reports.finding import Cause, Cure, Edit
from noclobber.model.seen.silent import Drift
from noclobber.model.source import Span
from noclobber.syntax.edits import append, insert, replace, with_argument
from noclobber.syntax.names import (
    Name,
    attributes,
    called,
    calls,
    dotted,
    has_stars,
    has_torch,
    in_tuple,
    is_given,
    is_own,
    is_read_besides,
    is_stored,
    keyword,
    last_name,
    mentions,
    reads,
    uses,
    value_given,
    values,
)
from noclobber.syntax.tree import File, Function, functions, last_line, walk
from noclobber.syntax.writes import WriteSyntax, write_in


def run_alike(scene: Scene) -> Iterator[Change]:
    """Changes by which a region that drifts computes in its second run what it did in the first."""
    if not scene.drifts or scene.steps():
        return
    yield from _run_as_before(scene)
    for write in scene.writes():
        yield from _closed_over(scene, write)
    yield from _on_own_copies(scene)
    yield from _given_clones(scene)


def not_again(scene: Scene) -> Iterator[Change]:
    """`f(x)` for `checkpoint(f, x, use_reentrant=False)`: backward then needs no second run."""
    event = scene.finding.event
    for file, call in _checkpoints(scene) if scene.drifts else ():
        if isinstance(call.args[0], ast.Starred) or any(one.arg is None for one in call.keywords):
            continue  # which arguments are those of `checkpoint` is not known
        given = [file.source(one) for one in call.args[1:]]
        given += [file.source(one) for one in call.keywords if one.arg not in _OPTIONS]
        region = file.source(call.args[0])
        is_plain = isinstance(call.args[0], (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
        text = region if is_plain else f"({region})"
        title = f"call `{region}` without `checkpoint`, at the price of what it then keeps"
        is_sound = isinstance(event, Drift) and _keeps_what_it_saves(event) and _is_read(scene, event)
        is_sound &= "context_fn" not in file.text
        # Where a graph is kept, more may be written before the next backward.
        is_sound &= not any(one.arg == "retain_graph" for one in walk(file.tree, ast.keyword))
        plainly, above = f"{text}({', '.join(given)})", file.above[call]
        whole: ast.expr = call
        if isinstance(above, ast.IfExp) and plainly in map(file.source, (above.body, above.orelse)):
            whole = above
        yield Change(title, (replace(file, whole, plainly),), 5, Cure.RUN_ONCE, is_sound)


def _keeps_what_it_saves(drift: Drift) -> bool:
    """Return True if it is known what has changed, and that nothing that the region saved was written. What a reentrant
    one would save is not known."""
    return bool(drift.writes or drift.moved) and not drift.spoils and not drift.reentrant


def _is_read(scene: Scene, drift: Drift) -> bool:
    """Return True if the region saved something of what was written, or a statement that does not write it reads it."""
    lines = {one.statement.lineno for one in scene.writes()}
    names = {*(one.tensor.name or "" for one in drift.writes), *(dotted(one.base) for one in scene.writes())}
    return not drift.is_guess or any(is_read_besides(file, one, lines) for file in scene.files for one in names)


def _checkpoints(scene: Scene) -> Iterator[tuple[File, ast.Call]]:
    """The calls of `checkpoint` in the places of the saves, and where a region is made."""
    for place in dict.fromkeys(scene.places("save", "create")):
        if isinstance(place.node, ast.Call) and called(place.node) == "checkpoint" and place.node.args:
            yield place.file, place.node


def _run_as_before(scene: Scene) -> Iterator[Change]:
    """`early_stop=False` and `preserve_rng_state=True`: for a region that no write has changed."""
    written = scene.finding.writes and scene.finding.cause is not Cause.MOVED
    for file, call in _checkpoints(scene) if not written else ():
        flag = keyword(call, "preserve_rng_state")
        if flag is not None and is_given(call, "preserve_rng_state", False):
            yield Change("let checkpoint restore the random state", (replace(file, flag.value, "True"),), 0)
        if keyword(call, "early_stop") is None and not any(one.arg is None for one in call.keywords):
            edit = with_argument(file, call, "early_stop=False")
            yield Change("let the region run to its end", (edit,), 1)


def _closed_over(scene: Scene, write: WriteSyntax) -> Iterator[Change]:
    """`checkpoint(lambda t: t * s, x)` as `checkpoint(lambda t, s: t * s, x, s.clone())`, which closes over nothing.

    The same for a function or method of this file that nothing else calls, and for what it reads as `self.s`; of
    `net.read`, that is `net.s`.
    """
    name = dotted(write.base)
    short = name.rpartition(".")[2]
    for file in scene.files if name else ():
        for one in walk(file.tree, ast.Call):
            region, given = _region(file, one), one.args[1:]
            if region is None or not given or not region.args.args:
                continue
            names = [each.arg for each in region.args.args]
            body = region.body if isinstance(region.body, list) else [region.body]
            held = dotted(one.args[0].value) if isinstance(one.args[0], ast.Attribute) else ""
            is_held = held != "" and name in (f"{held}.{short}", f"self.{short}")
            inner, outer = (f"self.{short}", f"{held}.{short}") if is_held else (name, name)
            read = [each for row in body for each in reads(inner, row, file)]
            if not read or short in names or len(names) - (names[0] == "self") != len(given):
                continue
            if inner != short and any(True for row in body for _ in reads(short, row, file)):
                continue
            last, end = region.args.args[-1], file.span(given[-1])
            if last.annotation is not None or region.args.defaults:
                continue
            edits = [
                insert(file, last_line(last), file.span(last).end_column, f", {short}"),
                insert(file, end.end_line, end.end_column, f", {outer}.clone()"),
                *(replace(file, each, short) for each in read if inner != short),
            ]
            is_sound = inner == outer == name and _is_sound(scene, file, region, name)
            yield Change(f"pass the region its own copy of `{outer}`", tuple(edits), 1, Cure.CLONE_ARGUMENT, is_sound)


def _is_sound(scene: Scene, file: File, region: ast.Lambda | Function, name: str) -> bool:
    """Return True if a region that is given a copy reads in both runs what it read in the first: only the region reads
    what has the name, which is a tensor, and it does not bind it; what writes that stands elsewhere, no plain value has
    changed as well, and no other region may run this one."""
    written, short = scene.writes(), name.rpartition(".")[2]
    if not _drifts_by(scene, file, name) or any(region in file.around(one.statement) for one in written):
        return False
    places, named = {one.statement for one in written}, mentions(file, short)
    inside = [one for one in named if region in file.around(one)]
    if any(is_stored(file, one) or dotted(one) != name for one in inside) or len(calls(file.tree, "checkpoint")) > 1:
        return False
    if any(one.value == getattr(region, "name", "") for one in walk(file.tree, ast.Constant)):
        return False  # `getattr` may call it
    others = [one for one in named if one not in inside and not places & set(file.around(one))]
    if {one.tensor.kind for one in scene.finding.writes} == {"buffer"}:
        return all(isinstance(one, ast.Attribute) and is_written_alone(file, one) for one in others)
    are_tensors = all(is_new(file, value_given(file, one)) for one in named if is_stored(file, one))
    is_whole = all(dotted(one.target) == name for one in written)
    return are_tensors and is_whole and all(is_stored(file, one) for one in others)


def _drifts_by(scene: Scene, file: File, name: str) -> bool:
    """Return True if, by what was seen, only writes through one name make a region compute other values again."""
    event, written = scene.finding.event, scene.writes()
    if not isinstance(event, Drift) or event.moved or event.raised or event.repeated or not event.writes:
        return False
    if not _is_read(scene, event):
        return False
    lines = {one.statement.lineno for one in written if one.file is file and _path(one) == name}
    return all(_path(one) == name for one in written) and scene.lines_written(file) <= lines


def _path(write: WriteSyntax) -> str:
    """What is written, by the names that its module has for it: "head.1.value" for `head[1].value`."""
    return write.name or _named(write.target)


def _named(node: ast.expr | None) -> str:
    inner = getattr(node, "value", None)
    last = node.attr if isinstance(node, ast.Attribute) else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        last = str(node.slice.value)
    return dotted(node) or (f"{_named(inner)}.{last}" if last and _named(inner) else "")


def _writes_own(file: File, buffer: str) -> bool:
    """Return True if the file does not make a buffer, or if an object may write its own, or give it away."""
    made = [ast.unparse(given) for one in calls(file.tree, "register_buffer") for given in one.args[:1]]
    own = [one for one in attributes(file.tree, buffer) if dotted(one) == f"self.{buffer}"]
    rows = [row for one in own if (row := file.statement(one)) is not None]
    written = any(write_in(file, row).name == f"self.{buffer}" for row in rows)
    return written or repr(buffer) not in made or not all(keeps_nothing(file, one, returned=False) for one in own)


def _given_clones(scene: Scene) -> Iterator[Change]:
    """`checkpoint(f, x)` as `checkpoint(f, x.clone())`, of what is written or else of the first argument; the same for
    what `partial` gives the region."""
    names = {write.name for write in scene.writes()}
    for file, call in _checkpoints(scene):
        region = call.args[0] if called(call.args[0]) == "partial" else None
        given = call.args[1:] + (values(region)[1:] if isinstance(region, ast.Call) else [])
        given = [one for one in given if not isinstance(one, ast.Starred)]
        for one in [each for each in given if dotted(each) in names] or given[:1]:
            title, edit = f"give the region a clone of `{file.source(one)}`", append(file, one, ".clone()")
            is_sound = _is_only_given(scene, file, one)
            yield Change(title, (edit,), 3, Cure.CLONE_ARGUMENT, is_sound=is_sound)


def _is_only_given(scene: Scene, file: File, given: ast.expr) -> bool:
    """Return True if only the writes that make a region drift, and the function that calls `checkpoint`, mention what
    it gives the region: the region reads it nowhere else."""
    scope, around, name = file.scope(given), file.class_of(given), dotted(given)
    rows = [one.statement for one in scene.writes()]
    if not _drifts_by(scene, file, name) or any(file.class_of(one) is not around for one in rows):
        return False
    is_whole = scene.kind != "tensor" or all(dotted(one.target) == name for one in scene.writes())
    if not is_whole or calls(file.tree, *WITHOUT_NAMES):
        return False  # it may be a list, or be read without its name
    by_name = isinstance(given, ast.Name)
    held: list[Name] = [*uses(scope, name)] if by_name else [*attributes(file.tree, last_name(given))]
    if by_name and not (is_own(scope, name) and all(file.scope(one) is scope for one in rows)):
        return False
    read = [one for one in held if one is not given and not is_stored(file, one) and file.statement(one) not in rows]
    put = [value_given(file, one) for one in held if is_stored(file, one)] if scene.kind == "tensor" else []
    if not by_name and not all(is_new(file, one) for one in put):
        return False  # others may hold it too
    return all(
        file.scope(one) is scope and (isinstance(file.above[one], ast.Call) or keeps_nothing(file, one, returned=False))
        for one in read
    )


def _on_own_copies(scene: Scene) -> Iterator[Change]:
    """`checkpoint(net, x, use_reentrant=False)` of a module whose buffer or weight is written: on its own copies.

    As arguments of `torch.func.functional_call`, which then runs again, with a module that a loop changes too.
    """
    kinds = [scene.kind, *(one.tensor.kind for one in scene.finding.writes)]
    what = next((OWN[one] for one in kinds if one in OWN), None)
    for file, call in _checkpoints(scene):
        if what is None or _region(file, call) or len(call.args) < 2 or has_stars(call) or not dotted(call.args[0]):
            continue
        if not is_given(call, "use_reentrant", False):
            continue
        net, texts = file.source(call.args[0]), [file.source(one) for one in call.args[1:]]
        names = {one.tensor.name for one in scene.finding.writes}
        seen = [one for one in scene.writes() if one.name or _path(one) in names]
        paths = {_path(one): one.base or one.target for one in seen}
        written = next((one for one in paths if one.startswith(f"{_named(call.args[0])}.")), "")
        key = written.removeprefix(f"{_named(call.args[0])}.")
        key = key or scene.name.rpartition(f"{net.rpartition('.')[2]}.")[2]
        is_known, ways = key != scene.name, []
        # For a module that a loop leads to, the path is not known; the last name may still be right.
        own = key if is_known else key.rpartition(".")[2]
        text = f"{net}.{own}" if own.replace(".", "_").isidentifier() else ""
        if not text and (held := paths.get(written)) is not None:
            text = file.source(held)
        if text:
            ways.append((f"a copy of its `{own}`", f'{{"{own}": {text}.clone()}}'))
        if not is_known or not ways:
            ways.append((f"copies of its {what}", copies_of(net, what)))
        start, end = file.span(call.args[0]), file.span(call.args[-1])
        for more, (title, copies) in enumerate(ways):
            text = f"torch.func.functional_call, {net}, {copies}, {in_tuple(texts)}"
            edit = Edit(Span(file.path, start.line, start.column, end.end_line, end.end_column), text)
            is_sound = bool(written) and not more and what == OWN["buffer"] and _drifts_by(scene, file, written)
            last = key.rpartition(".")[2]
            is_sound &= not _writes_own(file, last) and last not in _OF_NORMS and not ELSEWHERE.search(file.text)
            is_sound &= has_torch(file) and all(one.arg in _OPTIONS for one in call.keywords) and net != "self"
            yield Change(f"run `{net}` on {title}", (edit,), 4 + more, Cure.CLONE_ARGUMENT, is_sound)


_OF_NORMS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers that PyTorch's own modules write in training."""
_OPTIONS = ("use_reentrant", "preserve_rng_state", "determinism_check", "early_stop", "context_fn", "debug")
"""Arguments of `checkpoint` itself."""


def _region(file: File, call: ast.Call) -> ast.Lambda | Function | None:
    """What a `checkpoint` runs, where it is a lambda, or a function of this file that is named nowhere else."""
    if called(call) != "checkpoint" or len(call.args) + len(call.keywords) < 2 or not call.args:
        return None
    region = call.args[0]
    if isinstance(region, ast.Lambda):
        return region
    name = last_name(region)
    found = [one for one in functions(file.tree) if one.name == name]
    return found[0] if len(found) == 1 and len(mentions(file, name)) == 1 else None
