"""The user's program, run as `python` would run it: its `__main__`, its arguments, its way to end."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib.util
import inspect
import os
import pkgutil
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.machinery import BuiltinImporter, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

from noclobber.model.source import Owner, claim_for_user, give_source, owner_of


class NotAProgram(Exception):
    """What was named cannot be run. Its text is one line for the person who named it."""

    stdin: bytes | None = None
    """What was read from stdin, where the program was to come from there."""


def end_as_python(words: Sequence[str], reason: NotAProgram) -> int:
    """Say of what is no program what `python WORDS...` says of it; return its exit status."""
    if words[0] == "-m":  # these words are Python's own; the parents of the module have been imported, so not again
        _say(f"{sys.executable}: {reason}\n")
        return 1
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return subprocess.run([sys.executable, *flags, *words], input=reason.stdin, check=False).returncode


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is ready to run: the code of a script, of stdin or of `-c`, or else the module of `-m`.

    `argv` is what it will find in `sys.argv` and `folder` in `sys.path[0]`; `names` are the first globals of its
    `__main__`. A folder or zip file is the module `__main__` inside `folder`.
    """

    argv: list[str]
    folder: str
    code: CodeType | None = None
    module: str = "__main__"
    names: dict[str, Any] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        """Whether `folder` is the program itself, so that even `python -P` looks for modules there."""
        return self.code is None and self.module == "__main__"


def load(words: Sequence[str], read: Callable[[str], bytes | None] = lambda path: None) -> Program:
    """The program that `python WORDS...` would run: SCRIPT, a folder or zip file, -m MODULE, -c CODE, or - for stdin.

    Raises NotAProgram where it cannot be read or compiled; nothing of it has run then. Whether there is such a MODULE
    only `execute` can say, because a look imports its parents. `read` may give the script another text than its
    file has.
    """
    first, rest = words[0], list(words[1:])
    if first == "-m":
        return Program([first, *rest[1:]], os.getcwd(), module=rest[0])
    if first == "-c":
        return Program([first, *rest[1:]], "", _compiled(rest[0].encode(), "<string>", "<string>"))
    if first == "-":
        source = sys.stdin.buffer.read() if sys.stdin is not None else b""
        try:
            code = _compiled(source, "<stdin>", "<stdin>")
        except NotAProgram as reason:
            reason.stdin = source
            raise
        return Program([first, *rest], "", code, names={"__file__": "<stdin>", "__cached__": None})
    # Joined, not made normal: `python` keeps the dots and the links of what was typed.
    path = os.path.join(os.getcwd(), first)
    if pkgutil.get_importer(path) is not None:
        return Program([first, *rest], path)
    source = read(path)
    try:
        if source is None:
            with open(path, "rb") as file:
                source = file.read()
    except OSError as error:
        raise NotAProgram(f"cannot open `{first}`: {error.strerror}") from None
    folder, loader = os.path.dirname(os.path.realpath(path)), SourceFileLoader("__main__", path)
    names = {"__loader__": loader, "__file__": path, "__cached__": None}
    if first.endswith(".pyc") or source.startswith(importlib.util.MAGIC_NUMBER):
        compiled = SourcelessFileLoader("__main__", path)
        return Program([first, *rest], folder, _unpacked(compiled, first), names=names | {"__loader__": compiled})
    return Program([first, *rest], folder, _compiled(source, path, first), names=names)


@contextlib.contextmanager
def giving(program: Program, name: str, give: Callable[[bool], object]) -> Iterator[Program]:
    """Yield a program whose function of a name, such as `get_batch` or `Data.next`, returns what `give` returns, in the
    files of the user that it imports in the block too. `give` is asked for an iterator where the function is a
    generator."""

    def replaced(code: CodeType) -> CodeType:
        if name in (code.co_name, code.co_qualname):
            yields = bool(code.co_flags & inspect.CO_GENERATOR)
            return _GIVES.replace(
                co_consts=tuple(partial(give, yields) if one == _GIVEN else one for one in _GIVES.co_consts),
                co_filename=code.co_filename,
                co_firstlineno=code.co_firstlineno,
                co_name=code.co_name,
                co_qualname=code.co_qualname,
            )
        consts = tuple(replaced(one) if isinstance(one, CodeType) else one for one in code.co_consts)
        return code.replace(co_consts=consts)

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        code = native(loader, fullname)
        is_of_user = code is not None and owner_of(code.co_filename) is Owner.USER
        return replaced(code) if code is not None and is_of_user else code

    native = SourceFileLoader.get_code
    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
    try:
        yield program if program.code is None else replace(program, code=replaced(program.code))
    finally:
        SourceFileLoader.get_code = native  # type: ignore[method-assign]


_GIVEN = "what is given"
_FUNCTION = compile(f"def f(*_, **__):\n give = {_GIVEN!r}\n return give()", "", "exec", dont_inherit=True)
_GIVES = next(one for one in _FUNCTION.co_consts if isinstance(one, CodeType))
"""A function that returns what a constant of it returns."""


def _compiled(source: bytes, filename: str, shown: str) -> CodeType:
    """The code of a source text. `shown` is what the person calls the file."""
    try:
        if b"\0" in source:
            raise NotAProgram(f"`{shown}` is not a Python program: it holds null bytes")
        text = importlib.util.decode_source(source)
        code = compile(text, filename, "exec", dont_inherit=True)  # of bytes, it would count columns in bytes
    except SyntaxError as error:
        if error.lineno is None:
            raise NotAProgram(f"`{shown}` is not a Python program: {error.msg}") from None
        raise NotAProgram(f"{shown}:{error.lineno}:{max(1, error.offset or 1)}: {error.msg}") from None
    except UnicodeDecodeError as error:
        said = f"byte {error.start} is not text in {error.encoding.upper()}"
        raise NotAProgram(f"`{shown}` is not a Python program: {said}") from None
    except (MemoryError, RecursionError, OverflowError) as error:
        raise NotAProgram(f"`{shown}` cannot be compiled: {str(error) or type(error).__name__}") from None
    if filename.startswith("<"):
        claim_for_user(filename)
        give_source(filename, text)
    return code


def _unpacked(loader: SourcelessFileLoader, shown: str) -> CodeType:
    """The code of a compiled file, a .pyc."""
    try:
        code = loader.get_code("__main__")
    except (ImportError, EOFError, ValueError, TypeError) as error:
        raise NotAProgram(f"`{shown}` is not a compiled program: {error}") from None
    if code is None:
        raise NotAProgram(f"`{shown}` is not a compiled program")
    return code


def own_files(script: str) -> list[str]:
    """Return the user's own files: the script, if it is a file, and the modules that have been imported.

    A module may name a file that is none: `torch.ops` says "_ops.py" (torch 2.13; tests/fix/test_checked.py).
    """
    imported = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    named = [one for one in imported if isinstance(one, str) and one.endswith(".py") and owner_of(one) is Owner.USER]
    return [one for one in (os.path.realpath(script), *named) if os.path.isfile(one)]


def execute(program: Program) -> BaseException | None:
    """Run a program to the end of its `__main__`; the exception that left it, with the traceback that `python` shows.

    Raises NotAProgram where the module to run does not exist. `sys.argv`, `sys.path` and `sys.modules["__main__"]` stay
    as the program left them, for its threads, its exit functions and its pickles.
    """
    main = ModuleType("__main__")
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    vars(main).update({"__builtins__": builtins, "__loader__": BuiltinImporter, **program.names})
    sys.modules["__main__"] = main
    sys.argv = program.argv
    # Without `-P` or `-I`, `sys.path[0]` is the place that noclobber was started from. The program's own belongs there.
    if not sys.flags.safe_path:
        del sys.path[:1]
    if program.is_folder or not sys.flags.safe_path:
        sys.path.insert(0, program.folder)
    left = None
    try:
        # A warning whose `stacklevel` points above the program must say `sys:1`, or `<sys>:0`, as it does under
        # `python`, and not show a line of noclobber: so the frame above the program's first one carries that name.
        exec(_ABOVE_PROGRAM, {"__name__": "sys", "start": _start(program, main)})
    except BaseException as error:
        left = error.with_traceback(_from_program(error.__traceback__))
    if "__file__" in program.names:
        flush()  # `python` does so for a file, before it shows a traceback, and not for `-m` and `-c`
    try:
        if left is not None and _is_lookup_failure(left):
            raise NotAProgram(str(left).removeprefix(f"{sys.executable}: "))
        return left
    finally:
        # The frames of the error lead back to this one: it must not hold the error, or nothing of it is ever let go.
        del left


_ABOVE, _ABOVE_LINE = ("<sys>", 0) if sys.version_info >= (3, 13) else ("sys", 1)
_ABOVE_PROGRAM = compile("start()", _ABOVE, "exec").replace(co_firstlineno=_ABOVE_LINE)


def _start(program: Program, main: ModuleType) -> Callable[[], object]:
    """What runs a program, without a frame of noclobber."""
    if program.code is not None:
        return partial(exec, program.code, vars(main))
    # This is the function that `python -m` calls. It runs the module in `sys.modules["__main__"]`, with its `__spec__`.
    run: Callable[[str, bool], object] = runpy._run_module_as_main  # type: ignore[attr-defined]
    return partial(run, program.module, not program.is_folder)


def _from_program(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that `python` would have."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in (_ABOVE, __file__):
        traceback = traceback.tb_next
    return traceback


def _is_lookup_failure(error: BaseException) -> bool:
    """Whether `runpy` itself exited, having found no module to run."""
    traceback = error.__traceback__
    return (
        isinstance(error, SystemExit)
        and traceback is not None
        and traceback.tb_next is None
        and traceback.tb_frame.f_code.co_name == "_run_module_as_main"
        and traceback.tb_frame.f_globals.get("__name__") == "runpy"
    )


def show(error: BaseException | None) -> int:
    """Show how a program ended in the way that `python` does, through its `sys.excepthook`; its exit status."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        return _exit_status(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.last_exc = error  # type: ignore[attr-defined,unused-ignore]  # since Python 3.12
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        _say("sys.excepthook is missing\n")
        hook = sys.__excepthook__
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return _exit_status(leaving)
    except BaseException as second:
        _say("Error in sys.excepthook:\n")
        _display(second.with_traceback(_from_program(second.__traceback__)))
        _say("\nOriginal exception was:\n")
        _display(error)
    return 130 if is_interrupt(error) else 1


def is_interrupt(error: BaseException | None) -> bool:
    """Return True if an error that leaves a program makes `python` die of SIGINT. Until Python 3.14, subclasses of
    KeyboardInterrupt do not."""
    return isinstance(error, KeyboardInterrupt) if sys.version_info >= (3, 14) else type(error) is KeyboardInterrupt


def _exit_status(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    _say(f"{leaving.code}\n")
    return 1


def _display(error: BaseException) -> None:
    sys.__excepthook__(type(error), error, error.__traceback__)


def _say(text: str) -> None:
    """Write to the program's own stderr, which it may have closed or taken away: then `python` is silent as well."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)


def wind_down() -> None:
    """End the program as the interpreter would after its last line: wait for its threads, then run its exit functions.

    Doing so before the interpreter does lets what they write come before the report, and their tensors be watched; the
    interpreter then finds nothing left to do. The two functions are those that `multiprocessing` calls at the end of a
    child.
    """
    main = sys.modules.get("__main__")
    if main is not None and getattr(main, "__spec__", None) is None:
        # `python` takes these away from a script that has run; a thread or an exit function no longer finds them.
        for name in ("__file__", "__cached__"):
            vars(main).pop(name, None)
    threading = sys.modules.get("threading")
    if threading is not None:
        try:
            threading._shutdown()
        except BaseException as error:
            _say(f"Exception ignored in: {threading!r}\n")
            _display(error.with_traceback(_from_program(error.__traceback__)))
    atexit._run_exitfuncs()
    flush()


def flush() -> None:
    """Push out what the program has written. A stream that fails keeps its text, and fails again, aloud, at the end."""
    for stream in (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[union-attr]  # None in a program without a console
