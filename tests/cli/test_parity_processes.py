"""Child processes, signals and pipes of a program are those it has under `python`; the first process reports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .running import ENVIRONMENT, NEVER, PYTHON, RUN, Ended, assert_same, call, without_addresses, write

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and fork")

CHILDREN = """
    import multiprocessing, os, sys
    print("module", __name__, __spec__ and __spec__.name, sys.argv[1:], flush=True)

    class Point:
        x = 3

    def work(point):
        print("child", type(point) is Point, sys.argv[1:], sys.modules["__main__"].__name__, flush=True)
        return point

    def fail():
        raise ValueError("in a child")

    if __name__ == "__main__":
        from multiprocessing.spawn import get_preparation_data
        data = get_preparation_data("child")
        print(data.get("init_main_from_path"), data.get("init_main_from_name"), data["sys_argv"])
        context = multiprocessing.get_context(sys.argv[1])
        with context.Pool(1) as pool:
            print(type(pool.apply(work, [Point()])) is Point)
        failing = context.Process(target=fail)
        failing.start()
        failing.join()
        leaving = context.Process(target=sys.exit, args=(5,))
        leaving.start()
        leaving.join()
        print(failing.exitcode, leaving.exitcode)
    """


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize("words", [["main.py"], ["-m", "main"]], ids=lambda words: words[0])
def test_children(tmp_path: Path, words: list[str], method: str) -> None:
    write(tmp_path, {"main.py": CHILDREN})
    bare = assert_same(tmp_path, [*words, method])
    assert "1 5" in bare.stdout
    assert "ValueError: in a child" in bare.stderr


FORKS = {
    "a child that runs to the end": "import os\npid = os.fork()\npid and os.waitpid(pid, 0)\nprint('end', pid == 0)",
    "a child that fails": """
        import atexit, os, sys
        atexit.register(lambda: print("exit function", pid == 0, flush=True))
        pid = os.fork()
        if pid == 0:
            1 / 0
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        sys.exit(4)
        """,
    "a child that leaves": "import os, sys\nif os.fork() == 0:\n    sys.exit('bye')\nprint(os.wait()[1] >> 8)",
    "subprocess": "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import sys; print(sys.argv)'])",
}


@pytest.mark.parametrize("text", FORKS.values(), ids=FORKS.keys())
def test_forks(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"main.py": text})
    assert_same(tmp_path, ["main.py"])


def test_another_program_in_its_place(tmp_path: Path) -> None:
    """What was found is reported before, as nobody can afterwards."""
    write(tmp_path, {"main.py": "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(1)'])"})
    ended = call([*RUN, "main.py"], tmp_path)
    assert (ended.stdout, ended.status) == ("1\n", 0)
    told = ended.stderr.splitlines()
    assert told[0] == "noclobber: nothing found, because nothing was watched"
    assert told[1].startswith(f"not watched: `{sys.executable} -c print(1)` (pid ")


def ended_by(command: list[str], folder: Path, number: signal.Signals) -> Ended:
    """How a process ends that is sent a signal as soon as it says that it is ready."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    while not all(" S " in stat.read_text() for stat in Path(f"/proc/{process.pid}/task").glob("*/stat")):
        time.sleep(0.01)  # all its threads wait
    process.send_signal(number)
    stdout, stderr = process.communicate()
    return Ended(stdout, without_addresses(stderr), process.returncode)


SIGNALLED = {
    "interrupted": ("", signal.SIGINT, NEVER),
    "interrupt caught": ("signal.signal(signal.SIGINT, lambda *_: sys.exit(6))", signal.SIGINT, NEVER),
    "interrupt ignored": (
        "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.setitimer(signal.ITIMER_REAL, 0.4)",
        signal.SIGINT,
        "",
    ),
    "terminated": ("", signal.SIGTERM, ""),
    "termination caught": ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))", signal.SIGTERM, NEVER),
    "killed": ("", signal.SIGKILL, ""),
    "interrupt of a hook": ("sys.excepthook = lambda *_: print('hook')", signal.SIGINT, NEVER),
}


@pytest.mark.parametrize(("setup", "number", "footer"), SIGNALLED.values(), ids=SIGNALLED.keys())
@pytest.mark.parametrize("words", [["main.py"], ["-m", "main"]], ids=lambda words: words[0])
def test_signals(tmp_path: Path, setup: str, number: signal.Signals, footer: str, words: list[str]) -> None:
    text = f"import atexit, signal, sys, time\n{setup}\natexit.register(print, 'exit function')\n"
    write(tmp_path, {"main.py": text + "print('ready', flush=True)\ntime.sleep(30)\n"})
    bare = ended_by([*PYTHON, *words], tmp_path, number)
    ours = ended_by([*RUN, *words], tmp_path, number)
    assert ours.stderr == bare.stderr + footer
    assert (ours.stdout, ours.status) == (bare.stdout, bare.status)
    if setup == "":
        assert bare.status == -number


def test_interrupt_while_threads_are_waited_for(tmp_path: Path) -> None:
    text = """
        import atexit, os, threading
        atexit.register(print, "exit function")
        def late():
            print("ready", flush=True)
            os.read(0, 1)
        threading.Thread(target=late).start()
        """
    write(tmp_path, {"main.py": text})
    bare = ended_by([*PYTHON, "main.py"], tmp_path, signal.SIGINT)
    ours = ended_by([*RUN, "main.py"], tmp_path, signal.SIGINT)
    # `python` goes through its hook for errors that cannot be raised, which writes a colon after the bare name. From
    # 3.14 on it says either of these, by where in the wait the interrupt comes.
    either = {
        "KeyboardInterrupt: \n": "KeyboardInterrupt\n",
        "on threading shutdown:": "while joining a thread in _thread._shutdown():",
    }
    told, expected = ours.stderr, bare.stderr
    for one, other in either.items():
        told, expected = told.replace(one, other), expected.replace(one, other)
    assert told == expected + NEVER
    assert (ours.stdout, ours.status) == (bare.stdout, bare.status) == ("exit function\n", 0)


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nfor n in range(100_000): print(n)",
        "import sys\nprint('x')\nsys.stdin.read()",
        "import sys\nprint('x')\nsys.stdin.read()\nsys.exit(3)",
    ],
    ids=["much is written", "it shows at the end", "it shows at the end of a failure"],
)
def test_broken_pipe(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"main.py": text})
    ends = []
    for command in (PYTHON, RUN):
        process = subprocess.Popen(
            [*command, "main.py"],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.close()
        stderr = process.stderr.read().decode()
        assert "BrokenPipeError" in stderr
        assert stderr.count(NEVER) == (command is RUN)
        ends.append((stderr.replace(NEVER, ""), process.wait()))
        process.stderr.close()
    assert ends[0] == ends[1]


def test_a_closed_stderr_is_nobody_to_tell(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": "print('out')"})
    for closing in ("2>&-", "2>/dev/full"):
        shell = f"{' '.join(RUN)} main.py {closing}; echo $?"
        done = subprocess.run(shell, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == "out\n0\n" or (closing == "2>/dev/full" and done.stdout == "out\n120\n")


def test_the_process_is_the_one_that_was_started(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": "import os; print(os.getpid(), os.getppid())"})
    process = subprocess.Popen([*RUN, "main.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.communicate()[0].split() == [b"%d" % process.pid, b"%d" % os.getpid()]


def test_the_main_thread_is_watched_where_another_thread_imports_torch(tmp_path: Path) -> None:
    program = """
    import importlib, threading
    thread = threading.Thread(target=importlib.import_module, args=("torch",))
    thread.start()
    thread.join()
    import torch
    for _ in range(3):
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.data.mul_(2)
        y.sum().backward()
    """
    write(tmp_path, {"main.py": program})
    ended = call([*RUN, "main.py"], tmp_path)
    assert ended.status == 1
    assert "error[NC201]" in ended.stderr
    assert "note: seen 2 times at these lines" in ended.stderr
    assert "not watched: backward calls in threads that ran before watching began\n" in ended.stderr
