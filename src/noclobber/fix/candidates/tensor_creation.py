"""Tensors mended where they are made: not in inference mode or `no_grad`, with bytes of their own, mapped by `vmap`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from noclobber.fix.candidates.clones import definition
from noclobber.fix.candidates.finding_source import Scene
from noclobber.fix.candidates.syntax import ParsedFile, append, called, dotted, in_tuple, replace, walk
from noclobber.fix.candidates.untracked_writes import OWN, copies_of
from noclobber.fix.candidates.write_syntax import WriteSyntax, parameters, reads, written
from noclobber.fix.edits.candidate import Candidate
from noclobber.model.finding import Edit
from noclobber.model.source import Span

_EXPANDS = ("expand", "expand_as", "broadcast_to", "broadcast_tensors", "meshgrid")
_SHARES = ("from_numpy", "as_tensor", "asarray", "frombuffer", "from_dlpack")
_VIEWS = ("view", "narrow", "select", "transpose", "t", "permute", "chunk", "split", "unbind", "diagonal")
_MAKERS = ("zeros", "ones", "empty", "full")


def no_grad_instead(scene: Scene, cost: int = 1) -> Iterator[Candidate]:
    """`inference_mode` as `no_grad`: each place alone, then all. Values stay, and the tensors are ordinary ones."""
    places = [(file, one) for file in scene.files() for one in _modes(file)]
    edits = [edit for file, one in places for edit in (_as_no_grad(file, one),) if edit is not None]
    for some in dict.fromkeys([*((one,) for one in edits), tuple(edits)]):
        if some:
            yield Candidate("use `no_grad` instead of `inference_mode`", some, cost if len(some) == 1 else cost + 1)


def with_grad(scene: Scene, write: WriteSyntax, cost: int = 2) -> Iterator[Candidate]:
    """Take the decorator from a function that makes views; a list of views that it returns becomes a generator.

    A view that was taken before another view of the same tensor is written is stale: they have to come one by one.
    """
    for file in dict.fromkeys([write.file, *scene.files()]):
        for function in walk(file.module, cst.FunctionDef):
            views = [
                *walk(function, cst.Subscript),
                *(one for one in walk(function, cst.Call) if called(one) in _VIEWS),
            ]
            if not views or function in file.ancestors(write.statement):
                continue
            for one in function.decorators:
                if called(one.decorator) not in ("no_grad", "inference_mode"):
                    continue
                number = file.line(one)
                gone = Edit(Span(file.path, number, 1, number + 1, 1), "")
                yield Candidate(f"make the views of `{function.name.value}` with gradients recorded", (gone,), cost)
                lazy = [edit for each in walk(function, cst.Return) for edit in _lazy(file, each)]
                if lazy:
                    title = f"make the views of `{function.name.value}` with gradients recorded, one at a time"
                    yield Candidate(title, (gone, *lazy), cost)


def own_bytes(scene: Scene, write: WriteSyntax, cost: int = 2) -> Iterator[Candidate]:
    """`.clone()` behind `expand` where the tensor is made: in the function of the write, else anywhere."""
    file = write.file
    made = definition(file, write.base, write.statement) if write.base is not None else None
    if made is not None and any(called(one) in _EXPANDS for one in walk(made, cst.Call)):
        yield Candidate("give the expanded tensor its own bytes", (append(file, made, ".clone()"),), cost)
        return
    for one_file in scene.files():
        for one in walk(one_file.module, cst.Call):
            if called(one) in _EXPANDS[:3]:
                yield Candidate("give the expanded tensor its own bytes", (append(one_file, one, ".clone()"),), cost)


def not_shared(scene: Scene, cost: int = 1) -> Iterator[Candidate]:
    """`torch.from_numpy(buf)` with `.clone()`, and `.numpy()` with `.copy()`, where the memory is handed over."""
    for place in scene.places("create"):
        calls = [place.node] if isinstance(place.node, cst.Call) else list(walk(place.statement, cst.Call))
        for one in calls:
            if called(one) in _SHARES:
                yield Candidate("give the tensor bytes of its own", (append(place.file, one, ".clone()"),), cost)
            elif called(one) in ("numpy", "__array__"):
                yield Candidate("give numpy a copy", (append(place.file, one, ".copy()"),), cost)
    for file in scene.files():
        for one in walk(file.module, cst.Call):
            if called(one) in _SHARES:
                yield Candidate("give the tensor bytes of its own", (append(file, one, ".clone()"),), cost + 1)


def mapped(write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """`torch.zeros(n, n)` as `x.new_zeros(n, n)`, with an argument `x` of the function that the written value uses."""
    file, scope = write.file, write.file.scope(write.statement)
    made = definition(file, write.base, write.statement) if write.base is not None else None
    if not isinstance(made, cst.Call) or called(made) not in _MAKERS or not dotted(made.func).startswith("torch."):
        return
    own = parameters(scope)
    value = write.call if write.call is not None else getattr(write.statement, "value", None)
    named = [one.value for one in walk(value, cst.Name) if one.value in own] if value is not None else []
    for name in list(dict.fromkeys([*named, *own])):
        edit = replace(file, made.func, f"{name}.new_{called(made)}")
        yield Candidate(f"make it from `{name}`, which is mapped", (edit,), cost)


def closed_over(scene: Scene, write: WriteSyntax, cost: int = 1) -> Iterator[Candidate]:
    """`checkpoint(lambda t: t * s, x)` as `checkpoint(lambda t, s: t * s, x, s.clone())`, which closes over nothing.

    So with a function or method of the same file that nobody else calls, and with what it reads as `self.s`.
    """
    name = dotted(write.base)
    short = name.rpartition(".")[2]
    for file in scene.files() if name else ():
        for one in walk(file.module, cst.Call):
            region, given = _region(file, one), [arg for arg in one.args[1:] if arg.keyword is None]
            if region is None or not given or not region.params.params:
                continue
            names = [each.name.value for each in region.params.params]
            read = list(reads(file, name, region.body))
            if not read or short in names or len(names) - (names[0] == "self") != len(given):
                continue
            if name != short and any(reads(file, short, region.body)):
                continue
            ends = [file.span(region.params.params[-1].name), file.span(given[-1].value)]
            texts = [f", {short}", f", {name}.clone()"]
            edits = [
                Edit(Span(file.path, end.end_line, end.end_column, end.end_line, end.end_column), text)
                for end, text in zip(ends, texts, strict=True)
            ]
            edits += [replace(file, each, short) for each in read if name != short]
            yield Candidate(f"pass the region a copy of `{name}` of its own", tuple(edits), cost)


def given_clones(scene: Scene, cost: int = 3) -> Iterator[Candidate]:
    """`checkpoint(f, x)` as `checkpoint(f, x.clone())`, of what is written or else of the first argument."""
    names = {write.name for write in written(scene)}
    for place in scene.places("save"):
        call = place.node
        if isinstance(call, cst.Call) and called(call) == "checkpoint":
            given = [arg.value for arg in call.args[1:] if arg.keyword is None and not arg.star]
            for one in [each for each in given if dotted(each) in names] or given[:1]:
                edit = append(place.file, one, ".clone()")
                yield Candidate(f"give the region a clone of `{place.file.source(one)}`", (edit,), cost)


def on_own_copies(scene: Scene, cost: int = 4) -> Iterator[Candidate]:
    """`checkpoint(net, x, use_reentrant=False)` of a module whose buffer or weight is written: on copies of its own.

    As arguments of `torch.func.functional_call`, which is then what is run anew, with a module that a loop changes too.
    """
    what = OWN.get(scene.kind())
    for place in scene.places("save"):
        call, file = place.node, place.file
        if what is None or not isinstance(call, cst.Call) or called(call) != "checkpoint" or _region(file, call):
            continue
        given = [arg for arg in call.args if arg.keyword is None]
        options = [f"{arg.keyword.value}={file.source(arg.value)}" for arg in call.args if arg.keyword is not None]
        if len(given) < 2 or any(arg.star for arg in call.args) or "use_reentrant=False" not in options:
            continue
        net, texts = file.source(given[0].value), [file.source(arg.value) for arg in given[1:]]
        key = scene.name().rpartition(f"{net.rpartition('.')[2]}.")[2]
        is_known, ways = key != scene.name(), []
        # Of a module that a loop leads to nothing tells the path: the last name may be its own all the same.
        own = key if is_known else key.rpartition(".")[2]
        if own.replace(".", "_").isidentifier():
            ways.append((f"a copy of its `{own}`", f'{{"{own}": {net}.{own}.clone()}}'))
        if not is_known or not ways:
            ways.append((f"copies of its {what}", copies_of(net, what)))
        start, end = file.span(given[0].value), file.span(given[-1].value)
        for more, (title, copies) in enumerate(ways):
            text = f"torch.func.functional_call, {net}, {copies}, {in_tuple(texts)}"
            edit = Edit(Span(file.path, start.line, start.column, end.end_line, end.end_column), text)
            yield Candidate(f"run `{net}` on {title}", (edit,), cost + more)


def _region(file: ParsedFile, call: cst.Call) -> cst.Lambda | cst.FunctionDef | None:
    """What a `checkpoint` runs, where it is a lambda, or a function of this file that is named nowhere else."""
    if called(call) != "checkpoint" or len(call.args) < 2:
        return None
    region = call.args[0].value
    if isinstance(region, cst.Lambda):
        return region
    name = dotted(region).rpartition(".")[2]
    found = [one for one in walk(file.module, cst.FunctionDef) if one.name.value == name]
    named = [one for one in walk(file.module, cst.Name) if one.value == name]
    return found[0] if len(found) == 1 and len(named) == 2 else None


def unsynced(scene: Scene, cost: int = 2) -> Iterator[Candidate]:
    """`broadcast_buffers=False` for DistributedDataParallel."""
    for file in scene.files():
        for one in walk(file.module, cst.Call):
            given = [arg.keyword.value for arg in one.args if arg.keyword is not None]
            if called(one) in ("DistributedDataParallel", "DDP") and one.args and "broadcast_buffers" not in given:
                end = file.span(one.args[-1].value)
                here = Span(file.path, end.end_line, end.end_column, end.end_line, end.end_column)
                yield Candidate("do not broadcast the buffers", (Edit(here, ", broadcast_buffers=False"),), cost)


def _modes(file: ParsedFile) -> Sequence[cst.CSTNode]:
    names = [one for one in walk(file.module, cst.Attribute) if one.attr.value == "inference_mode"]
    return [file.parents[one] if isinstance(file.parents[one], cst.Call) else one for one in names]


def _as_no_grad(file: ParsedFile, node: cst.CSTNode) -> Edit | None:
    if isinstance(node, cst.Call):
        if node.args and [dotted(one.value) for one in node.args] != ["True"]:
            return None
        return replace(file, node, f"{dotted(node.func).removesuffix('inference_mode')}no_grad()")
    return replace(file, node, f"{dotted(node).removesuffix('inference_mode')}no_grad()")


def _lazy(file: ParsedFile, node: cst.Return) -> list[Edit]:
    """The brackets of a returned list of views as parentheses."""
    value = node.value
    if not isinstance(value, cst.ListComp):
        return []
    return [replace(file, value, f"({file.source(value)[1:-1]})")]
