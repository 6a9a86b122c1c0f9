"""Edits for silent wrongs: a gradient made anew, shared memory copied, a stash that is saved, a write that is seen."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from noclobber.model.finding import Edit
from noclobber.model.source import Site
from noclobber.rules.shared.editing import indent_of, used_after
from noclobber.rules.shared.rewriting import called, has_twin, out_of_place, source_name, target_of
from noclobber.rules.shared.sourcetext import bounds, path_to, source, span_of, statement, text_of

_SIGNS = {"mul_": "*", "add_": "+", "sub_": "-", "div_": "/"}
_ATOMS = (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.Subscript)


def returned(site: Site | None, *, by_hook: bool) -> Edit | None:
    """`lambda g: g.mul_(k)` as `lambda g: g * k`; a statement of a backward, or of a hook that returns nothing yet."""
    text, path = text_of(site), path_to(site)
    if site is None or len(path) < 2:
        return None
    if isinstance(path[-1], ast.Call) and isinstance(path[-2], (ast.Lambda, ast.Return)):
        value = _twin(text, path[-1])
        return Edit(span_of(site, path[-1]), value) if value else None
    edit, found, target = out_of_place(site), statement(path), target_of(site)
    functions = [one for one in path if isinstance(one, ast.FunctionDef)]
    if edit is None or not functions or not isinstance(target, ast.Name):
        return None
    if used_after(site, target.id):
        return edit
    if by_hook and found is functions[-1].body[-1]:
        return Edit(edit.span, f"return {edit.replacement.partition(' = ')[2]}")
    return None


def call_then(site: Site | None, names: Sequence[str], method: str) -> Edit | None:
    """`torch.from_numpy(buf)` as `torch.from_numpy(buf).clone()`: a method called on what one of `names` gives."""
    path = path_to(site)
    if site is None or not path or not isinstance(path[-1], ast.Call) or called(path[-1]) not in names:
        return None
    return Edit(span_of(site, path[-1]), f"{source(text_of(site), path[-1])}.{method}()")


def saved_for_backward(site: Site | None) -> tuple[Edit, ...]:
    """`ctx.x = x` as `ctx.save_for_backward(x)`, and `ctx.saved_tensors[0]` where the class reads `ctx.x`.

    Only for a class that saves nothing yet; empty otherwise.
    """
    path = path_to(site)
    found = statement(path)
    classes = [one for one in path if isinstance(one, ast.ClassDef)]
    if site is None or not classes or not isinstance(found, ast.Assign) or len(found.targets) != 1:
        return ()
    target, value = found.targets[0], found.value
    if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and isinstance(value, ast.Name)):
        return ()
    context = target.value.id
    edits = [Edit(span_of(site, found), f"{context}.save_for_backward({value.id})")]
    for one in ast.walk(classes[-1]):
        if not isinstance(one, ast.Attribute) or one is target or source_name(one.value) != context:
            continue
        if one.attr in ("save_for_backward", "saved_tensors"):
            return ()
        if one.attr == target.attr:
            if not isinstance(one.ctx, ast.Load):
                return ()
            edits.append(Edit(span_of(site, one), f"{context}.saved_tensors[0]"))
    return tuple(edits) if len(edits) > 1 else ()


def marked_dirty(site: Site | None) -> Edit | None:
    """`ctx.mark_dirty(x)` on a line before the write to `x`, in a `forward(ctx, x)` that returns `x`."""
    text, path, target = text_of(site), path_to(site), target_of(site)
    found = statement(path)
    functions = [one for one in path if isinstance(one, ast.FunctionDef)]
    indent = indent_of(text, found) if found is not None else None
    if site is None or found is None or indent is None or not functions or not isinstance(target, ast.Name):
        return None
    arguments = [one.arg for one in functions[-1].args.args]
    returns = [one.value for one in ast.walk(functions[-1]) if isinstance(one, ast.Return) and one.value is not None]
    named = {one.id for value in returns for one in ast.walk(value) if isinstance(one, ast.Name)}
    if arguments[:1] != ["ctx"] or target.id not in arguments or target.id not in named:
        return None
    start, end = bounds(text, found)
    return Edit(span_of(site, found), f"ctx.mark_dirty({target.id})\n{indent}{text[start:end]}")


def _twin(text: str, call: ast.Call) -> str | None:
    """`g * k` for `g.mul_(k)`, `g.clamp(-1, 1)` for `g.clamp_(-1, 1)`."""
    name, func = called(call), call.func
    if not isinstance(func, ast.Attribute) or not isinstance(func.value, (ast.Name, ast.Attribute)):
        return None
    if not has_twin(call):
        return None
    if name in _SIGNS and len(call.args) == 1 and not call.keywords and isinstance(call.args[0], _ATOMS):
        return f"{source(text, func.value)} {_SIGNS[name]} {source(text, call.args[0])}"
    end = bounds(text, func)[1] - bounds(text, call)[0]
    whole = source(text, call)
    return whole[: end - 1] + whole[end:]
