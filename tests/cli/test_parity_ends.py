"""How a program ends is how it ends under `python`: status, traceback, exit functions, threads, order of its output."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from .running import NEVER, assert_same, fresh, noclobber, write

STATUSES = {
    "nothing": ("pass", 0),
    "exit": ("exit()", 0),
    "none": ("import sys; sys.exit(None)", 0),
    "zero": ("import sys; sys.exit(0)", 0),
    "three": ("import sys; sys.exit(3)", 3),
    "true": ("raise SystemExit(True)", 1),
    "minus one": ("import sys; sys.exit(-1)", 255),
    "beyond a byte": ("import sys; sys.exit(256)", 0),
    "text": ("import sys; print('out'); sys.exit('a message')", 1),
    "two things": ("import sys; sys.exit((1, 2))", 1),
    "empty text": ("import sys; sys.exit('')", 1),
    "exit in a function": ("def f():\n    try:\n        exit(4)\n    finally:\n        print('finally')\nf()", 4),
    "os._exit": ("import os; print('lost'); os._exit(5)", 5),
}


@pytest.mark.parametrize(("text", "status"), STATUSES.values(), ids=STATUSES.keys())
def test_same_status(tmp_path: Path, text: str, status: int) -> None:
    write(tmp_path, {"main.py": text})
    assert assert_same(tmp_path, ["main.py"]).status == status


ERRORS = {
    "plain": "def f():\n    return 1 / 0\nprint('before')\nf()",
    "in an import": "import broken",
    "missing import": "import nothing_of_that_name",
    "syntax error of an import": "import wrong",
    "notes": "error = ValueError('x')\nerror.add_note('a note')\nraise error",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error",
    "context": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    [][0]",
    "group": "raise ExceptionGroup('several', [ValueError(1), ExceptionGroup('inner', [TypeError(2)])])",
    "no traceback of its own": "raise RuntimeError('x').with_traceback(None)",
    "error in eval": "eval('1 / 0')",
    "raised from exec": "exec(compile('def f():\\n  raise OSError(2, \"no\")\\nf()', 'made up.py', 'exec'))",
    "unprintable": "class E(Exception):\n    def __str__(self):\n        raise ValueError\nraise E",
    "keyboard interrupt of a kind": "class K(KeyboardInterrupt): pass\nraise K('x')",
    "generator exit": "raise GeneratorExit('x')",
    "hook": "import sys\nsys.excepthook = lambda kind, error, tb: print(kind, tb.tb_lineno, tb.tb_next)\n1 / 0",
    "hook outside of an except block": "import sys\nsys.excepthook = lambda *_: print(sys.exc_info())\n1 / 0",
    "hook that fails": "import sys\ndef hook(*_):\n    [][0]\nsys.excepthook = hook\n1 / 0",
    "hook of another shape": "import sys\nsys.excepthook = lambda: None\n1 / 0",
    "hook that exits": "import sys\nsys.excepthook = lambda *_: sys.exit(9)\n1 / 0",
    "no hook": "import sys\ndel sys.excepthook\n1 / 0",
    "no stderr": "import sys\nsys.stderr = None\n1 / 0",
    "closed stderr": "import sys\nsys.stderr = open('log', 'w')\nsys.stderr.close()\n1 / 0",
    "last error is kept": "import atexit, sys\natexit.register(lambda: print(sys.last_type, sys.last_value))\n1 / 0",
}


@pytest.mark.parametrize("text", ERRORS.values(), ids=ERRORS.keys())
def test_same_traceback(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"main.py": text, "broken.py": "def f():\n    [][0]\nf()", "wrong.py": "x = (\n"})
    assert assert_same(tmp_path, ["main.py"]).status != 0


@pytest.mark.parametrize("text", [STATUSES["text"][0], *(ERRORS[name] for name in ("plain", "in an import", "hook"))])
def test_same_end_of_modules_and_code(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"main.py": text, "broken.py": "def f():\n    [][0]\nf()"})
    for words in (["-m", "main"], ["-c", text]):
        assert assert_same(tmp_path, words).status == 1


LAST_WORDS = {
    "exit functions": """
        import atexit
        atexit.register(print, "first in")
        atexit.register(print, "last in")
        print("end")
        """,
    "exit functions that fail": """
        import atexit, sys
        atexit.register(lambda: sys.exit(7))
        def fails():
            raise ValueError
        atexit.register(fails)
        """,
    "exit function of an exit function": "import atexit\natexit.register(lambda: atexit.register(print, 'inner'))",
    "threads still alive": """
        import atexit, threading, time
        def late():
            time.sleep(0.1)
            print("thread", threading.main_thread().is_alive(), "__file__" in globals())
        threading.Thread(target=late).start()
        atexit.register(lambda: print("exit function", threading.active_count()))
        """,
    "a daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "error in a thread": "import threading\nthreading.Thread(target=lambda: 1 / 0, name='T').start()",
    "thread pools": """
        from concurrent.futures import ThreadPoolExecutor
        ThreadPoolExecutor().submit(lambda: print("in a pool"))
        """,
    "unraisable": "class D:\n    def __del__(self):\n        1 / 0\nD()",
    "logging": "import logging\nlogging.warning('w')\nlogging.getLogger('x').error('e', exc_info=True)",
    "frames of an exit are let go": """
        import atexit, weakref, sys
        class Big: pass
        def f():
            big = Big()
            global gone
            gone = weakref.ref(big)
            sys.exit(3)
        atexit.register(lambda: print(gone()))
        f()
        """,
}


@pytest.mark.parametrize("text", LAST_WORDS.values(), ids=LAST_WORDS.keys())
def test_same_last_words(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"main.py": text})
    assert_same(tmp_path, ["main.py"])


def test_the_report_comes_after_all_that_the_program_writes(tmp_path: Path) -> None:
    text = """
        import atexit, sys, threading, time
        atexit.register(print, "exit function")
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
        print("out")
        print("err", file=sys.stderr)
        1 / 0
        """
    write(tmp_path, {"main.py": text})
    lines = assert_same(tmp_path, ["main.py"], merged=True).stdout.splitlines()
    assert lines[:2] == ["err", "out"]
    assert lines[-3:] == ["ZeroDivisionError: division by zero", "thread", "exit function"]
    lines = assert_same(tmp_path, ["-m", "main"], merged=True).stdout.splitlines()
    assert lines[0] == "err"
    assert lines[-4:] == ["ZeroDivisionError: division by zero", "out", "thread", "exit function"]
    assert_same(tmp_path, ["-c", dedent(text)], merged=True)
    # Without an error: that a program on stdin has source is more than `python` knows.
    assert_same(tmp_path, ["-"], stdin=dedent(text).replace("1 / 0", ""), merged=True)
    lines = assert_same(tmp_path, ["main.py"], merged=True, options=["-u"]).stdout.splitlines()
    assert lines[:2] == ["out", "err"]


def test_what_lives_until_the_interpreter_goes_comes_last(tmp_path: Path) -> None:
    text = "class D:\n    def __del__(self, write=__import__('os').write):\n        write(2, b'gone\\n')\nkept = D()"
    write(tmp_path, {"main.py": text})
    assert fresh(["run", "main.py"], tmp_path).stderr == NEVER + "gone\n"


def test_a_program_that_moves_away_still_gets_its_report(tmp_path: Path) -> None:
    text = """
        import os, sys
        os.mkdir("elsewhere")
        os.chdir("elsewhere")
        sys.path[:] = []
        sys.argv.append("more")
        sys.stderr = sys.stdout = open("log", "w")
        """
    write(tmp_path, {"main.py": text})
    ended = fresh(["run", "--format", "json", "-o", "report.json", "main.py"], tmp_path)
    assert ended.stderr == NEVER.rstrip("\n") + "; the report is in report.json\n"
    program = json.loads((tmp_path / "report.json").read_text())["program"]
    assert program["argv"] == ["main.py"]
    assert program["status"] == 0
    assert program["torch"] is None
    assert (tmp_path / "elsewhere" / "log").read_text() == ""


def test_a_program_that_removes_its_folder_still_gets_its_report(tmp_path: Path) -> None:
    error = "import os, torch\ny = torch.ones(3, requires_grad=True).exp()\ny.data.mul_(2)\ny.sum().backward()\n"
    gone = "os.mkdir('gone')\nos.chdir('gone')\nos.rmdir(os.getcwd())\n"
    write(tmp_path, {"main.py": error + gone})
    ended = fresh(["run", "main.py"], tmp_path)
    assert ended.status == 1
    assert "error[NC201]" in ended.stderr
    assert "internal error" not in ended.stderr


def test_an_error_found_counts_where_the_program_ends_with_256(tmp_path: Path) -> None:
    """The system keeps the last byte of a status: for it, this program has ended well."""
    error = "import torch\ny = torch.ones(3, requires_grad=True).exp()\ny.data.mul_(2)\ny.sum().backward()\n"
    write(tmp_path, {"main.py": f"{error}raise SystemExit(256)\n", "other.py": f"{error}raise SystemExit(257)\n"})
    assert noclobber(["run", "main.py"], tmp_path).status == 1
    assert noclobber(["run", "other.py"], tmp_path).status == 257 % 256


@pytest.mark.parametrize("pure", ["0", "1"])
def test_a_daemon_runs_operators_until_python_ends(tmp_path: Path, pure: str) -> None:
    """Libraries of operators that Python registered are gone by then: exit functions run in the reverse order."""
    text = """
        import atexit, threading
        seen, over = threading.Event(), threading.Event()
        def end():
            seen.clear()
            print("still runs" if seen.wait(20) else "")
            over.set()
            daemon.join()
        atexit.register(end)
        import torch
        def work():
            while not over.is_set():
                (torch.ones(3, requires_grad=True).detach().reshape(3, 1) * 2).add_(1).split(1)
                seen.set()
        daemon = threading.Thread(target=work, daemon=True)
        daemon.start()
        torch.ones(2, requires_grad=True).exp().sum().backward()
        """
    write(tmp_path, {"main.py": text})
    ended = fresh(["run", "main.py"], tmp_path, env={"NOCLOBBER_PURE": pure})
    assert ended.stdout == "still runs\n"
    assert ended.stderr == "noclobber: nothing found in 1 backward call\n"
