"""What a function can read, as a checkpointed region does: the tensors that it reaches, and the plain values.

Values are read without calling the program's code: no property, no `__getattr__`, no `__len__` of its own.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, NamedTuple
from weakref import ref

import torch

from noclobber.model.seen.silent import Moved
from noclobber.model.source import Owner, owner_of

_DEEPEST = 5
"""How many levels are followed: a closure's cell, the trainer in it, its dict of modules, a module, its contents."""
_MOST = 2000
"""How many values of one container are visited."""
_MOST_ITEMS = 64
"""How many plain values of one list or dict are noted."""
_LONGEST = 200
"""Longer texts are not noted."""
_PLAIN = frozenset((int, float, complex, bool, str, bytes, NoneType, range, torch.dtype, torch.device, torch.Size))
_PASSED_BY = (type, ModuleType, BuiltinFunctionType)
_SIZED = frozenset((dict, list, tuple, set, frozenset, deque, OrderedDict, defaultdict))
"""Types whose `len` runs no code of the program."""
_LISTS = (list, tuple, set, frozenset, deque)
_OF_EVERY_MODULE = {name: None for name in vars(torch.nn.Module()) if name != "training"}
_COUNT = "num_batches_tracked"
"""A buffer of batch norm. Batch norm reads it only if its momentum is None."""

Path = tuple[Any, object] | None
"""The way to a value: that to its owner, and the attribute, key, index or variable. None is the region's function."""


_TENSOR = "tensor"
Value = tuple[Path, object, object]
"""What is noted of a value: the path of its owner; its attribute, key, index or variable; the value if it is plain,
else its type, its `id`, and the number of its items."""


@dataclass(slots=True, eq=False)
class Reads:
    """What a region can read at one moment. Only `tensors` holds what it names, so keep no Reads: keep its `values`."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    """The tensors that it reaches, each once, except those that are arguments themselves."""
    given: list[torch.Tensor] = field(default_factory=list)
    """The arguments that are tensors."""
    values: Iterable[Value] = ()
    """The plain values, and what is noted of others."""


def read_by(
    function: object, args: Iterable[object] = (), kwargs: dict[str, object] | None = None, *, states: bool = True
) -> Reads:
    """Return what a function can read, called with these arguments.

    Unless `states`, the parameters, buffers and children of modules are left out: of a module only attributes count.
    """
    found = Reads()
    names: tuple[str, ...] | None = None
    first: list[tuple[object, object]] = []
    for index, argument in enumerate(args):
        if issubclass(type(argument), torch.Tensor):
            found.given.append(argument)  # type: ignore[arg-type]
        else:
            names = _parameters(function) if names is None else names
            first.append((names[index] if index < len(names) else f"argument {index + 1}", argument))
    found.values = _walk([*first, *(kwargs or {}).items()], function, _DEEPEST, states, found.tensors)
    return found


def walk(
    rows: list[tuple[object, object]],
    function: object,
    depth: int,
    states: bool,
    tensors: list[torch.Tensor],
) -> Iterable[Value]:
    """Return what is noted of arguments and what they lead to, and of what a function leads to, `depth` levels down.

    The tensors on the way are added to `tensors`. The native part does the same (native/reads.cpp).
    """
    values: list[Value] = [(None, "", (type(function).__name__, id(function), None))]
    seen: dict[int, object] = {}
    waiting: list[tuple[object, int, Path]] = [(function, depth, None)]
    path: Path = None
    while True:
        for key, value in rows:
            kind = type(value)
            if kind in _PLAIN:
                if kind not in (str, bytes) or len(value) <= _LONGEST:  # type: ignore[arg-type]
                    values.append((path, key, value))
            elif issubclass(kind, torch.Tensor):
                values.append((path, key, (_TENSOR, id(value), None)))
                if id(value) not in seen:
                    seen[id(value)] = value
                    tensors.append(value)  # type: ignore[arg-type]
            elif kind is itertools.count:
                values.append((path, key, (repr(value), id(value), None)))
            elif issubclass(kind, Enum):
                values.append((path, key, value))
            elif not issubclass(kind, _PASSED_BY):
                values.append((path, key, (kind.__name__, id(value), len(value) if kind in _SIZED else None)))  # type: ignore[arg-type]
                if depth and id(value) not in seen:
                    waiting.append((value, depth - 1, (path, key)))
        value, depth = None, 0
        while waiting:
            value, depth, path = waiting.pop()
            if id(value) not in seen:
                break
        else:
            return values
        seen[id(value)] = value
        kind = type(value)
        if issubclass(kind, torch.nn.Module):
            rows, held = of_module(value, states), object.__getattribute__(value, "__dict__")
            depth += 1  # a module in a module is on the level of its owner
        else:
            rows = held = inside(value)
        if id(kind) not in seen:
            seen[id(kind)] = kind
            if kind not in _OF_NOBODY:
                rows = rows + _of_class(kind, held)


def tensors_held(values: Iterable[object]) -> list[torch.Tensor]:
    """Return the tensors that functions and objects can read, one after the other, each as often as it stands there.

    The parameters, buffers and children of modules are left out.
    """
    found: list[torch.Tensor] = []
    for value in values:
        reads = read_by(value, states=False)
        known = {id(tensor): tensor for tensor in reads.tensors}
        found += [known[noted[1]] for _, _, noted in reads.values if type(noted) is tuple and noted[0] == _TENSOR]
    return found


def inside(value: Any) -> list[tuple[object, object]]:
    """Return the values that a value leads to directly, each with its attribute, key, index or variable."""
    return list(_each_inside(value))


def _each_inside(value: Any) -> Iterator[tuple[object, object]]:
    kind = type(value)
    if issubclass(kind, dict):
        rows = list(itertools.islice(dict.items(value), _MOST))
        yield from _few_plain((Key(key if _is_plain(key) else None), item) for key, item in rows)
    elif issubclass(kind, _LISTS):
        iterate = next(one for one in _LISTS if issubclass(kind, one)).__iter__
        items = list(itertools.islice(iterate(value), _MOST))
        yield from _few_plain((Key(index), item) for index, item in enumerate(items))
    elif kind is FunctionType:
        yield from _of_function(value)
    elif kind is MethodType:
        yield "self", value.__self__
        yield "", value.__func__
    elif issubclass(kind, functools.partial):
        yield "", functools.partial.func.__get__(value)
        yield "args", functools.partial.args.__get__(value)
        yield "keywords", functools.partial.keywords.__get__(value)
    elif _users_of(kind) or str(kind.__module__).partition(".")[0] not in _NOT_FOLLOWED:
        yield from _of_object(value)


class Key(NamedTuple):
    """The key or index of an item, unlike the name of an attribute."""

    key: object


_FOLLOWED = {"__main__", "types", "dataclasses", "argparse", "queue", "weakref"}
_NOT_FOLLOWED = sys.stdlib_module_names - _FOLLOWED | {"torch", "builtins"}


def _is_plain(key: object) -> bool:
    """Return True for a plain value, and for a tuple of these: `table[a, b]`."""
    return all(type(one) in _PLAIN for one in key) if type(key) is tuple else type(key) in _PLAIN


def _few_plain(rows: Iterable[tuple[object, object]]) -> Iterator[tuple[object, object]]:
    left = _MOST_ITEMS
    for key, item in rows:
        if type(item) in _PLAIN:
            left -= 1
            if left < 0:
                continue
        yield key, item


def of_module(module: Any, states: bool) -> list[tuple[object, object]]:
    """Return the attributes of a module, and its parameters, buffers and modules if `states`."""
    held = object.__getattribute__(module, "__dict__")
    rows = [row for row in list(held.items()) if row[0] not in _OF_EVERY_MODULE]
    if states:
        rows += held.get("_parameters", {}).items()
        if held.get("_buffers"):
            counts = held.get("momentum", 0) is None
            rows += [row for row in list(held["_buffers"].items()) if counts or row[0] != _COUNT]
        rows += held.get("_modules", {}).items()
    return rows


def _of_object(value: object) -> Iterator[tuple[object, object]]:
    """Yield what an object holds in its `__dict__` and its slots."""
    for one, name in _layout(type(value)):
        try:
            content = vars(one)[name].__get__(value)
        except AttributeError:  # nothing was assigned to the slot
            continue
        if name == "__dict__":
            yield from list(itertools.islice(content.items(), _MOST))
        else:
            yield name, content


def _layout(kind: type) -> list[tuple[type, str]]:
    """Return where an object holds its attributes: CPython's own descriptors, as a class and a name in it."""
    return [
        (one, name)
        for one in kind.__mro__[:-1]
        for name in ("__dict__", *_slots(one))
        if type(vars(one).get(name)) in (MemberDescriptorType, GetSetDescriptorType)
    ]


def _slots(kind: type) -> tuple[str, ...]:
    named = vars(kind).get("__slots__", ())
    return (named,) if isinstance(named, str) else tuple(named) if isinstance(named, (tuple, list)) else ()


_Held = dict[object, object] | list[tuple[object, object]]
"""What an object holds: the `__dict__` of a module; of others what `inside` returns."""


def _of_class(kind: type, held: _Held) -> list[tuple[object, object]]:
    """Return what an object of a class reads from its user's classes: the plain values that are their attributes and
    not `held` by the object; and the globals that their methods name."""
    rows: list[tuple[object, object]] = []
    for index, scopes in _users_of(kind):
        attributes = vars(kind.__mro__[index])
        own = [(name, one) for name, one in list(attributes.items()) if type(one) in _PLAIN and name[:2] != "__"]
        if own:
            taken = dict(held)
            rows += [row for row in own if row[0] not in taken]
        for method, variables in scopes:
            function = attributes.get(method)
            scope = function.__globals__ if type(function) is FunctionType else {}
            for variable in variables:
                value = scope.get(variable.name)
                kind_of_value = type(value)
                if (kind_of_value in _PLAIN and variable.name in scope) or issubclass(kind_of_value, _STATES):
                    rows.append((variable, value))
    return rows


_STATES = (torch.Tensor, Enum)


class Variable(NamedTuple):
    """The name of a variable, which is no attribute of the value that leads to it."""

    name: str


_Scopes = tuple[tuple[str, tuple[Variable, ...]], ...]
"""The globals that the methods of a class may look up, under the name of one method for each module."""
_users: dict[ref[type], tuple[tuple[int, _Scopes], ...]] = {}
"""What `_users_of` knows, which the native part looks up too."""
_OF_NOBODY = set[type]()
"""Classes of torch without anything of the user's, which their modules hold for good."""


def _users_of(kind: type) -> tuple[tuple[int, _Scopes], ...]:
    """Return which classes of a class's `__mro__` are defined in the user's code, each with its scopes."""
    known = _users.get(ref(kind))
    if known is None:
        users = [(index, one) for index, one in enumerate(kind.__mro__) if _is_users(one)]
        _users[ref(kind, _forgotten)] = known = tuple((index, _scopes_of(one)) for index, one in users)
        module = str(kind.__module__)
        is_held = module.startswith("torch.") and vars(sys.modules.get(module, torch)).get(kind.__name__) is kind
        if is_held and not known:
            _OF_NOBODY.add(kind)
    return known


def _forgotten(kind: ref[type]) -> None:
    _users.pop(kind, None)


def _is_users(kind: type) -> bool:
    methods = [value for value in list(vars(kind).values()) if type(value) is FunctionType]
    return any(owner_of(method.__code__.co_filename) is Owner.USER for method in methods)


def _scopes_of(kind: type) -> _Scopes:
    methods = {name: value for name, value in vars(kind).items() if type(value) is FunctionType}
    first = {id(method.__globals__): name for name, method in reversed(methods.items())}
    names = {name: set[str]() for name in first.values()}
    for method in methods.values():
        names[first[id(method.__globals__)]] |= _names(method.__code__) & method.__globals__.keys()
    return tuple((name, tuple(map(Variable, sorted(found)))) for name, found in names.items())


def _of_function(function: FunctionType) -> Iterator[tuple[object, object]]:
    """Yield what a function reads from its closure, its defaults and its globals."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # the name is not bound yet
            continue
        yield from _of_variable(name, value, function)
    defaults = function.__defaults__ or ()
    code = function.__code__
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    scope = function.__globals__
    for name in _names(code):
        if name in scope:
            yield from _of_variable(name, scope[name], function)


def _of_variable(name: str, value: Any, function: FunctionType) -> Iterator[tuple[object, object]]:
    """Yield a variable of a function. Of a class from the same module the plain attributes may be a state."""
    yield Variable(name), value
    if type(value) is type and value.__module__ == function.__module__:
        yield from [(Variable(f"{name}.{key}"), one) for key, one in vars(value).items() if type(one) in _PLAIN]


def _parameters(function: object) -> tuple[str, ...]:
    """Return the names of the parameters that positional arguments of a call bind; empty where they are not known."""
    skipped = 0
    if issubclass(type(function), torch.nn.Module):
        function, skipped = (
            next((vars(one).get("forward") for one in type(function).__mro__ if "forward" in vars(one)), None),
            1,
        )
    elif type(function) is MethodType:
        function, skipped = function.__func__, 1
    code = function.__code__ if type(function) is FunctionType else None
    return code.co_varnames[skipped : code.co_argcount] if code is not None else ()


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType) -> frozenset[str]:
    """Return the names that code, and the functions defined in it, may look up among the globals."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*(_names(constant) for constant in inner))


KINDS = (
    _PLAIN,
    _PASSED_BY,
    _SIZED,
    _OF_EVERY_MODULE,
    _OF_NOBODY,
    torch.Tensor,
    torch.nn.Module,
    Enum,
    itertools.count,
    inside,
    _users_of,
    _users,
    Key,
    _MOST_ITEMS,
    _LONGEST,
)
"""What the native part needs to know for `walk`, in the order of its `Kinds`."""
_walk: Callable[..., Iterable[Value]] = walk


def walk_with(native: Callable[..., Iterable[Value]]) -> None:
    """Let the native part do the walk from now on."""
    global _walk
    _walk = native


# -- what differs between two runs -------------------------------------------------------------------------------------

MOST_MOVED = 8
"""Values that are reported for one region."""


def moved(before: Iterable[Value], now: Iterable[Value]) -> tuple[Moved, ...]:
    """Return the values that differ, numbers and flags first, then sizes, then other tensors under the same name.

    Only what both runs can read is compared. What lies in an object that was replaced is compared with what lies in the
    new object at the same place. Of several equal changes of one attribute (`training`) only the first is returned.
    """
    old = {(owner, key): value for owner, key, value in before}
    new = {(owner, key): value for owner, key, value in now}
    found: dict[tuple[str, str, str], tuple[int, Moved]] = {}
    for path, value in new.items():
        was = old.get(path, value)
        rank = _rank(was, value)
        if rank is not None:
            owner, key = path
            one, other = (rows.get(owner or (None, "")) for rows in (old, new))
            kind = other[0] if type(other) is tuple else ""
            replaced = type(one) is tuple and type(other) is tuple and one[1] != other[1]
            said = _in_words(was, value)
            name = "" if isinstance(key, Key) else str(key.name if isinstance(key, Variable) else key)
            rebound = type(was) is not tuple or type(value) is not tuple or was[1] != value[1]
            told = Moved(_name(path), name, *said, isinstance(key, Variable), kind, replaced, rebound)
            found.setdefault((name or told.name, *said), (rank, told))
    return tuple(one for _, one in sorted(found.values(), key=lambda entry: entry[0])[:MOST_MOVED])


def _rank(was: object, value: object) -> int | None:
    """Return how telling the change of a value is, 0 most; None if it has not changed."""
    if type(was) is tuple and type(value) is tuple:
        if was[0] != value[0]:
            return 0
        if was[2] != value[2]:
            return 1
        return 2 if was[1] != value[1] and value[0] in (_TENSOR, FunctionType.__name__) else None
    if was is value or (type(was) is type(value) and (was == value or repr(was) == repr(value))):
        return None
    return 0


def _in_words(was: Any, value: Any) -> tuple[str, str]:
    """Return a value in the first and in the second run: "0" and "8", "a tensor" and "another tensor"."""
    if type(was) is tuple and type(value) is tuple and was[0] == value[0]:
        if was[2] != value[2]:
            return f"{was[2]} long", f"{value[2]} long"
        return f"a {was[0]}", f"another {was[0]}"
    one, other = (f"a {each[0]}" if type(each) is tuple else _shortened(repr(each)) for each in (was, value))
    return one, other


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:36]} ..."


def _name(path: Path) -> str:
    """Return the name of a value as the region's code may spell it: "cache.pos", "self.steps['train']"."""
    keys: list[object] = []
    while path is not None:
        path, key = path
        keys.insert(0, key)
        if isinstance(key, Variable):
            break
    text = ""
    for key in keys:
        if isinstance(key, Key):
            text += f"[{key.key!r}]"
        elif name := key.name if isinstance(key, Variable) else str(key):
            text += f".{name}" if text else name
    return text
