"""What a program finds when it starts is what it finds under `python`: arguments, paths, its own module, its source."""

from __future__ import annotations

import py_compile
import sys
import zipfile
from pathlib import Path

import pytest

from .running import RUN, assert_same, call, write

WHERE = "import sys; print(__name__, sys.argv, sys.path, sys.flags)\n"
ALL = "print(sorted(globals().items(), key=str))\n" + WHERE + "print(vars(sys.modules['__main__']) is globals())\n"


@pytest.mark.parametrize(
    "words",
    [
        ["main.py"],
        ["./main.py", "--format", "json", "-o", "x", "--", "-m"],
        ["pkg/../main.py"],
        ["pkg/inner.py", "-h"],
        ["link.py"],
        ["-m", "main", "-o", "x", "--", "--raise"],
        ["-m", "pkg"],
        ["-m", "pkg.inner", "--version"],
        ["folder", "1"],
        ["folder/", "1"],
        ["packed.zip"],
        ["compiled.pyc", "a"],
        ["-", "a", "-c"],
    ],
    ids=" ".join,
)
def test_same_surroundings(tmp_path: Path, words: list[str]) -> None:
    names = ["main.py", "pkg/__init__.py", "pkg/__main__.py", "pkg/inner.py", "folder/__main__.py"]
    write(tmp_path, {name: "" if "__init__" in name else ALL for name in names})
    (tmp_path / "link.py").symlink_to("pkg/inner.py")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
        packed.writestr("__main__.py", ALL)
    py_compile.compile(str(tmp_path / "main.py"), str(tmp_path / "compiled.pyc"))
    assert assert_same(tmp_path, words, stdin=ALL).stdout


@pytest.mark.parametrize("words", [["--raise"], ["-c", "x"], []], ids=str)
def test_same_surroundings_of_code(tmp_path: Path, words: list[str]) -> None:
    assert assert_same(tmp_path, ["-c", ALL, *words]).stdout


def test_joined_options_are_those_of_python(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": WHERE})
    assert_same(tmp_path, ["-mmain", "x"])
    assert_same(tmp_path, ["-cprint(7)", "x"])


@pytest.mark.parametrize("words", [["main.py"], ["-m", "main"], ["folder"], ["-c", WHERE]], ids=lambda words: words[0])
def test_options_of_the_interpreter_hold(tmp_path: Path, words: list[str]) -> None:
    text = WHERE + "import warnings; warnings.warn('old', DeprecationWarning); assert sys.argv is None\n"
    write(tmp_path, {"main.py": text, "folder/__main__.py": text})
    for options in (["-O"], ["-Wdefault", "-Xdev"], ["-P"]):
        if options != ["-P"] or words[0] != "-m":  # `python -P -m main` does not look here either
            assert_same(tmp_path, words, options=options)


SCRIPTS = {
    "siblings are imported": "import sibling; print(sibling.__file__)",
    "relative import in a script fails": "from . import sibling",
    "future of noclobber is not inherited": "def f(x: int): ...\nprint(f.__annotations__)",
    "source is found": """
        import inspect, linecache
        def f():
            return 1
        class C:
            pass
        print(inspect.getsource(f), inspect.getsource(C), linecache.getline(__file__, 1), inspect.getsourcefile(f))
        """,
    "dataclasses and type hints": """
        from __future__ import annotations
        import dataclasses, typing
        @dataclasses.dataclass
        class Point:
            x: list[Point]
            y: typing.ClassVar[int] = 0
        print(Point([]), typing.get_type_hints(Point), Point.__module__)
        """,
    "pickles of its own classes": """
        import copy, pickle
        class Point: pass
        def f(): pass
        print(type(pickle.loads(pickle.dumps(Point()))) is Point, pickle.dumps(f), copy.deepcopy(Point()).__class__)
        """,
    "stdin is passed through": "import sys; print(input(), sys.stdin.read(), sys.stdin.fileno())",
    "a changed main stays": "import sys, types; sys.modules['__main__'] = types.ModuleType('other'); print(__name__)",
    "encoding cookies": "# -*- coding: latin-1 -*-\nprint(ascii('\u00e9'))",
    "a byte order mark": "\ufeffprint('marked')",
    "no line of noclobber in a warning": "import warnings\nwarnings.warn('above', stacklevel=2)\nwarnings.warn('here')",
    "a filtered warning": "from warnings import *\nwarn('old', DeprecationWarning)\nsimplefilter('error')\nwarn('x')",
    "torch is not imported": "import sys; print('torch' in sys.modules, 'rich' in sys.modules, 'numpy' in sys.modules)",
    "environment": "import os; print(sorted(os.environ.items()))",
}


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_same_script(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"main.py": text, "sibling.py": ""})
    assert_same(tmp_path, ["main.py"], stdin="first\nsecond\nthird\n")


def test_relative_imports_of_a_package(tmp_path: Path) -> None:
    text = "from . import other; from .other import x; print(x, __spec__, __package__)"
    write(tmp_path, {"pkg/__init__.py": "print('package')", "pkg/__main__.py": text, "pkg/inner.py": text})
    write(tmp_path, {"pkg/other.py": "x = 1"})
    assert assert_same(tmp_path, ["-m", "pkg"]).stdout.startswith("package\n1 ")
    assert assert_same(tmp_path, ["-m", "pkg.inner"]).stdout.startswith("package\n1 ")
    assert assert_same(tmp_path, ["pkg"]).status == 1


def test_source_of_stdin_and_code_is_known(tmp_path: Path) -> None:
    text = "import linecache; print(linecache.getline(__import__('sys')._getframe().f_code.co_filename, 2))\n# two\n"
    for words in (["-"], ["-c", text]):
        assert call([*RUN, *words], tmp_path, stdin=text).stdout.strip() == "# two"


def test_source_of_code_has_the_lines_of_python(tmp_path: Path) -> None:
    text = "import linecache, sys  # \x0c\nprint(linecache.getline(sys._getframe().f_code.co_filename, 2))\n"
    for words in (["-"], ["-c", text]):
        assert call([*RUN, *words], tmp_path, stdin=text).stdout.strip() == text.splitlines()[-1]


def test_python_reads_a_script_from_a_pipe(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("no /dev/stdin")
    assert_same(tmp_path, ["/dev/stdin", "x"], stdin="import sys; print(sys.argv, __file__)")
