"""Take `inplace=True` from a module or a call.

Sound if nothing reads the argument of the module again: it is the new result of another call and has no name, or one
name alone holds it (holding.py) and is bound to the result. Then only the sharing of memory changes, and the program
cannot notice that. The module is made in one place, by `nn.X(..., inplace=True)` in its class or as a
part of an `nn.Sequential`, whose inner results have no names.

An autocast that keeps no casts makes each anew, of the weight as it is: that is sound where the files enter autocast
in one place, and costs a cast for each use.

Tried are the flags of modules that are named alike, those of a library's modules switched off, and the flag of
`DistributedDataParallel` by which it writes buffers.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from noclobber.mend.change import Change, change
from noclobber.mend.holders.holding import holds_alone, is_new
from noclobber.mend.holders.making import module_called, module_writes, parts_of
from noclobber.mend.holders.seen import holders_at
from noclobber.mend.scene import Scene, run_by
from noclobber.model.reports.finding import Cure, Edit, Finding
from noclobber.model.seen.hints import Opportunity
from noclobber.model.seen.silent import StaleCast
from noclobber.syntax.edits import after, replace, with_argument, without_argument
from noclobber.syntax.in_place import in_place, with_flag
from noclobber.syntax.names import (
    arguments,
    called,
    called_by,
    calls,
    dotted,
    imported_from,
    is_read_again,
    keyword,
    last_name,
    named,
)
from noclobber.syntax.tree import WITH, File, Place, starts, walk
from noclobber.syntax.writes import FLAG_AT, is_flagged, write_at, writes

_OF_OP = {
    "relu_": {"ReLU"}, "hardtanh_": {"ReLU6", "Hardtanh"}, "clamp_": {"ReLU6", "Hardtanh"},
    "leaky_relu_": {"LeakyReLU"},
    "elu_": {"ELU", "CELU", "SELU"}, "celu_": {"CELU"}, "selu_": {"SELU"}, "silu_": {"SiLU"}, "mish_": {"Mish"},
    "dropout_": {"Dropout"}, "feature_dropout_": {"Dropout1d", "Dropout2d", "Dropout3d"}, "threshold_": {"Threshold"},
    "alpha_dropout_": {"AlphaDropout"}, "hardswish_": {"Hardswish"}, "hardsigmoid_": {"Hardsigmoid"},
    "rrelu_": {"RReLU"},
    "rrelu_with_noise_": {"RReLU"}, "mul_": {"Dropout", "Dropout1d", "Dropout2d", "Dropout3d"},
}  # fmt: skip


def without_flag(scene: Scene) -> Iterator[Change]:
    """The flag by which a call or a module writes, removed from the call, or where the module is made."""
    yield from _sound(scene)
    if scene.code == "NC105":
        yield from _unsynced(scene)
    if not (scene.may_write_anew or scene.is_leaf):
        return
    places = [one for one in scene.places("write") if (write := write_at(one)).call and not writes(write.call)]
    if places:
        yield from _built(scene, places)


def _sound(scene: Scene) -> Iterator[Change]:
    """The flag removed, where nothing reads the argument again."""
    place, finding = scene.place("write"), scene.finding
    if place is None or not isinstance(place.node, ast.Call):
        return
    file, call = place.file, place.node
    if is_flagged(call):
        if call.args and _is_last_use(finding, file, call, call.args[0]):
            yield from change(f"let `{called(call)}` write a new tensor", [dropped(file, call)], 1, Cure.FLAG, True)
        return
    made = module_called(file, call)
    if made is not None and all(_fits(finding, file, one, module_writes(made)) for one in _calls_of(file, call)):
        flagged = [one for one in parts_of(made) if isinstance(one, ast.Call) and is_flagged(one)]
        edits = [dropped(file, one) for one in flagged]
        yield from change(_without(len(flagged)), edits, len(flagged), Cure.FLAG, True)


def _without(modules: int) -> str:
    return f"build {'these modules' if modules > 1 else 'this module'} without `inplace=True`"


def _unsynced(scene: Scene) -> Iterator[Change]:
    """`broadcast_buffers=False` for DistributedDataParallel."""
    for file in scene.files:
        for one in calls(file.tree, "DistributedDataParallel", "DDP"):
            if arguments(one) and keyword(one, "broadcast_buffers") is None:
                edit = with_argument(file, one, "broadcast_buffers=False")
                yield Change("do not broadcast the buffers", (edit,), 2)


def without_cache(scene: Scene) -> Iterator[Change]:
    """`cache_enabled=False` for the only `torch.autocast` of the files of a finding, if its block runs the backward
    that has used the cast."""
    files = scene.files if isinstance(scene.finding.event, StaleCast) else []
    uses = [(file, one) for file in files for one in named(file.tree) if "autocast" in last_name(one)]
    if len(uses) != 1 or (call := called_by(*uses[0])) is None:
        return
    file = uses[0][0]
    known = (*_AUTOCASTS, *(imported_from(file, "torch") & {"autocast"}))
    names = [one for each in files for one in walk(each.tree, ast.alias) if one.name.endswith("autocast")]
    if dotted(call.func) not in known or any(one.asname for one in names):  # by another name may be one more
        return
    block = next((one for one in file.around(call) if isinstance(one, WITH)), None)
    heads = [one.context_expr for one in block.items] if block is not None else []
    run = [block, *run_by(scene, block)] if block is not None and call in heads else []
    read = [one.node for one in scene.places("read")]
    is_run = bool(read) and all(any(one in ast.walk(each) for each in run) for one in read)
    if is_run and len(call.args) < 2 and {one.arg for one in call.keywords} <= {"device_type", "dtype"}:
        edit = with_argument(file, call, "cache_enabled=False")
        yield Change("let autocast keep no casts", (edit,), 1, Cure.FLAG, is_sound=True)


_AUTOCASTS = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast")


def _calls_of(file: File, call: ast.Call) -> list[ast.Call]:
    around = file.class_of(call) if isinstance(call.func, ast.Attribute) else None
    return [one for one in calls(around or file.tree, called(call)) if ast.dump(one.func) == ast.dump(call.func)]


def _fits(finding: Finding, file: File, call: ast.Call, writes: bool) -> bool:
    """Return True if the result of a call is used, and nothing else reads its argument if the call writes it."""
    is_used = len(call.args) == 1 and not call.keywords and not isinstance(file.above[call], ast.Expr)
    return is_used and (not writes or _is_last_use(finding, file, call, call.args[0]))


def _is_last_use(finding: Finding, file: File, call: ast.Call, argument: ast.expr) -> bool:
    """Return True if nothing reads the argument after the call, and something reads the result."""
    if isinstance(file.above[call], ast.Expr):
        return False
    if isinstance(argument, ast.Call):
        return is_new(file, argument)
    write = file.statement(call)
    if not isinstance(argument, ast.Name) or write is None:
        return False
    if not holds_alone(file, argument.id, write, argument, holders_at(finding, file, write)):
        return False
    bound = [dotted(one) for one in write.targets] if isinstance(write, ast.Assign) and write.value is call else []
    return bound == [argument.id] or not is_read_again(file, argument.id, write)


def dropped(file: File, call: ast.Call) -> Edit | None:
    """Return the edit that removes the flag from a call, or sets it to `False` if another argument follows it.

    A flag without its name is the last argument.
    """
    flag, given = keyword(call, "inplace"), arguments(call)
    if flag is not None and len(given) > 1 and starts(flag) == min(map(starts, given)):
        return replace(file, flag.value, "False")
    return without_argument(file, call, flag or call.args[-1])


def _built(scene: Scene, places: list[Place]) -> Iterator[Change]:
    """Builders of the module called at a place, the likeliest first, then all of that class, then all there are."""
    built = [
        (file, one)
        for file in scene.files
        for one in walk(file.tree, ast.Call)
        if called(one)[:1].isupper() and is_flagged(one)
    ]
    classes = set().union(*(_OF_OP.get(op, set()) for op in scene.ops()))
    named = _called_at(built, places)
    alike = [(file, one) for file, one in built if called(one) in classes]
    both = [one for one in named if one in alike]
    for edits in _edits((both, named, alike, built), dropped):
        yield Change(_without(len(edits)), edits, 1 + (len(edits) > 1))
    if not built:
        for place in places:
            yield from _switched_off(place)


_Built = list[tuple[File, ast.Call]]


def _called_at(built: _Built, places: list[Place]) -> _Built:
    """Those of some modules that are assigned to a name by which a statement calls one: `self.act = nn.ReLU(...)` where
    it is `h = self.act(h)`."""
    nodes = [place.node if isinstance(place.node, ast.Call) else place.row for place in places]
    names = {called(one) for node in nodes for one in walk(node, ast.Call)} - {""}
    targets = [(file, one, getattr(file.statement(one), "targets", ())) for file, one in built]
    return [(file, one) for file, one, own in targets if names.intersection(map(last_name, own))]


def _edits(groups: Iterable[_Built], edit: Callable[[File, ast.Call], Edit | None]) -> Iterator[tuple[Edit, ...]]:
    """The edits of each group of modules that has any, each group once."""
    for some in dict.fromkeys(map(tuple, groups)):
        if edits := tuple(found for file, one in some if (found := edit(file, one)) is not None):
            yield edits


def _switched_off(place: Place) -> Iterator[Change]:
    """Where a library builds the modules: a loop that switches their flags off, once the net is there."""
    file = place.file
    name = dotted(place.node.func) if isinstance(place.node, ast.Call) else ""
    if not name or name.startswith(("torch.", "F.")):
        return
    blanks = file.indentation()
    loop = [
        f"for module in {name}.modules():",
        f'{blanks}if getattr(module, "inplace", False):',
        f"{blanks * 2}module.inplace = False",
    ]
    for one in walk(file.tree, ast.Assign):
        if any(dotted(target) == name for target in one.targets) and isinstance(one.value, ast.Call):
            edit = after(file, one, *loop) if file.indent(one) is not None else None
            yield from change(f"switch `inplace` off in the modules of `{name}`", [edit], 2)


def written_in_place(scene: Scene) -> Iterator[Change]:
    """The operator of a hint as one that writes, or the module that calls it with its flag."""
    hint = scene.finding.event
    if not isinstance(hint, Opportunity):
        return
    for place in scene.places("write")[:1]:
        if hint.spelling.how == "module":
            yield from _flagged(scene, place, hint.spelling.name)
            continue
        for one in in_place(place, hint.op, hint.argument, hint.spelling, numbers=hint.numbers):
            yield Change("write in place", (one.edit,), 1)


def _flagged(scene: Scene, place: Place, name: str) -> Iterator[Change]:
    """Builders of the modules of a class that are called at a place, with the flag: those of that name, then all."""
    built = [(file, one) for file in scene.files for one in calls(file.tree, name)]
    for edits in _edits((_called_at(built, [place]), built), _with_flag):
        more = f" ({len(edits)} of them)" if len(edits) > 1 else ""
        yield Change(f"build this module with `inplace=True`{more}", edits, len(edits))


def _with_flag(file: File, call: ast.Call) -> Edit | None:
    most = FLAG_AT.get(called(call), len(call.args))
    return with_flag(file, call) if len(call.args) <= most and not is_flagged(call) else None
