"""Plants an exception into any function of a package: every function that its source defines, nested ones as well.

Nothing is listed by hand: functions are found by walking the package, and code objects inside code objects.
"""

import gc
import importlib
import pkgutil
import sys
import threading
import traceback
from contextlib import contextmanager
from types import CodeType, FunctionType

from noclobber.model.source import PASSED_OVER

PLANTED = "planted on purpose"


def modules(package):
    """The modules of a package, imported."""
    names = [one.name for one in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    return [importlib.import_module(name) for name in names]


class Plants:
    """The functions of some modules: where their code objects are, and which functions run them."""

    def __init__(self, modules):
        files = {module.__file__ for module in modules}
        self.functions = {}
        """The functions there are at present, by their code object."""
        gc.unfreeze()  # what the tests froze at their beginning is not among the objects
        for one in gc.get_objects():
            if type(one) is FunctionType and one.__code__.co_filename in files:
                self.functions.setdefault(one.__code__, []).append(one)
        gc.freeze()
        self.paths = {}
        """The code objects that lead to each, the outermost first."""
        for code in list(self.functions):
            self._below((code,))

    def _below(self, path):
        known = self.paths.get(path[-1])
        if known is None or len(path) > len(known):  # a closure that is still there is not what leads to the next one
            self.paths[path[-1]] = path
            for const in path[-1].co_consts:
                if isinstance(const, CodeType):
                    self._below((*path, const))

    def named(self):
        """What can be planted: those that `def` or `lambda` makes, no comprehensions and no annotations."""
        inner = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "__annotate__")
        return {
            code: f"{code.co_filename.rpartition('/')[2]}:{code.co_qualname}"
            for code in self.paths
            if code.co_name not in inner
        }

    @contextmanager
    def planted(self, code):
        """Have a function raise at once; those that are made of it meanwhile as well."""
        replaced = []
        for at in range(len(self.paths[code])):
            root = self.paths[code][at]
            for function in self.functions.get(root, ()):
                path, instead = self.paths[code][at:], raising(code)
                for outer, inner in zip(path[-2::-1], path[:0:-1], strict=True):
                    consts = tuple(instead if one is inner else one for one in outer.co_consts)
                    instead = outer.replace(co_consts=consts)
                replaced.append((function, function.__code__))
                function.__code__ = instead
        reached.clear()
        try:
            yield
        finally:
            for function, before in reversed(replaced):
                function.__code__ = before


reached = []
"""Who called what was planted and has raised: the innermost functions, the last one first."""


def fail():
    """Raise."""
    callers = [one.f_code.co_qualname for one, _ in traceback.walk_stack(sys._getframe(1))]
    reached.append(" < ".join(callers[:12]))
    raise KeyError(PLANTED)


def raising(code):
    """Code that raises, and can be put in the place of another."""
    free = code.co_freevars
    lines = ["def outer():", *(f" {name} = None" for name in free), " def planted(*_given, **_named):"]
    lines += [
        f"  from {__name__} import fail",
        "  fail()",
        f"  return ({', '.join(free)},)" if free else "  pass",
        " return planted",
    ]
    names = {}
    exec("\n".join(lines), names)
    made = names["outer"]().__code__
    assert sorted(made.co_freevars) == sorted(free)  # whatever their order: none is read
    return made.replace(co_name=code.co_name, co_qualname=code.co_qualname, co_filename=code.co_filename)


@contextmanager
def called(files):
    """The code of these files that runs meanwhile, and of that what others than these files call.

    An exception planted at the very beginning of such a function is raised before any line of it, and so before any
    `try`: it would stand for a failure of the interpreter.
    """
    ran, entered = set(), set()

    def profile(frame, event, argument):
        if event == "call" and frame.f_code.co_filename in files:
            ran.add(frame.f_code)
            caller = frame.f_back
            while caller is not None and caller.f_code.co_filename.endswith(("functools.py", "contextlib.py")):
                caller = caller.f_back
            if caller is None or caller.f_code.co_filename not in {*files, PASSED_OVER}:
                entered.add(frame.f_code)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield ran, entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
