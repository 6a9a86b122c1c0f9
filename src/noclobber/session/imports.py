"""Calls back at the moment when the program has imported a module, and leaves the module as it would have been; says
where torch cannot be imported."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType

from noclobber.model.reports.error import UnsupportedTorch


def after_import(name: str, act: Callable[[], None]) -> None:
    """Call `act` as soon as module `name` has been imported: at once where it has been, never where it never is.

    `act` runs before the `import` statement returns, so no line of the program can use the module before. It must not
    raise. An import that fails does not count; a later one that succeeds does.
    """
    if name in sys.modules:
        act()
        return
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) and finder.name == name:
            finder.acts.append(act)
            return
    sys.meta_path.insert(0, _Finder(name, act))


class NoTorch(Exception):
    """What was asked for needs PyTorch, which cannot be imported or is not supported. Its text says why."""


@contextmanager
def torch_needed() -> Iterator[None]:
    """Import what needs torch in a block. Raises NoTorch."""
    try:
        yield
    except UnsupportedTorch as unsupported:
        raise NoTorch(str(unsupported)) from None
    except (Exception, SystemExit) as failure:
        raise NoTorch(f"torch cannot be imported: {type(failure).__name__}: {failure}") from None


@contextmanager
def no_collection(*, imports: bool = True) -> Iterator[None]:
    """Put garbage collections off for a block that makes many objects.

    Those of a block that `imports` stay, and go to the oldest generation at once. On CPython 3.11, collections take
    0.25 s of the 1.2 s of `import torch`, and a full one takes 0.07 s after it.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if imports and not gc.get_freeze_count():  # or the program's own would be let go
            gc.freeze()
            gc.unfreeze()
        gc.enable()


class _Finder:
    """Asks the other finders, and changes the spec that they find so that it tells when the module is loaded.

    Wrapping the loader instead would put a frame of noclobber into the tracebacks of an import that fails, and would
    show in `module.__loader__`.
    """

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self.name = name
        self.acts = [act]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if type(spec) is ModuleSpec:
                    spec.__class__ = _TellingSpec
                    vars(spec)["_loaded"] = self._loaded
                return spec
        return None

    def _loaded(self) -> None:
        if self.name in sys.modules and self in sys.meta_path:
            sys.meta_path.remove(self)
            for act in self.acts:
                act()


class _TellingSpec(ModuleSpec):
    """A spec that calls `_loaded` when the module has been executed, without a garbage collection in between, then is a
    plain spec again.

    importlib sets `spec._initializing` to True before it executes a module and to False after, on success and failure,
    since Python 3.3. Other threads that import the module wait while it is True.
    """

    @property
    def _initializing(self) -> bool:
        return bool(vars(self).get("_initializing", False))

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        if value:
            executing = vars(self)["_executing"] = ExitStack()
            executing.enter_context(no_collection())
        elif "_loaded" in vars(self):
            try:
                with vars(self).pop("_executing", ExitStack()):
                    vars(self).pop("_loaded")()
            finally:
                self.__class__ = ModuleSpec  # type: ignore[assignment]
        vars(self)["_initializing"] = value
