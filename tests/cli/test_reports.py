"""`run` with PyTorch, from the first line of a program to its report, and `report` and `explain`, which read."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from .running import Ended, fresh, noclobber, write

BROKEN = """
    import sys
    import torch
    h = torch.ones(2, requires_grad=True).sigmoid()
    h += 1
    print("before", sys.argv[1:], flush=True)
    h.sum().backward()
    """
(PACKAGE,) = importlib.util.find_spec("noclobber").submodule_search_locations
STALE = "one of the variables needed for gradient computation has been modified by an inplace operation"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    folder = tmp_path_factory.mktemp("saved")
    write(folder, {"main.py": BROKEN})
    return folder, noclobber(["run", "--format", "json", "-o", "report.json", "main.py", "--format", "x"], folder)


@pytest.mark.smoke
def test_a_report_in_a_file(saved: tuple[Path, Ended]) -> None:
    folder, ended = saved
    assert ended.stdout == "before ['--format', 'x']\n"
    traceback, footer = ended.stderr.splitlines()[:-1], ended.stderr.splitlines()[-1]
    assert traceback[0] == "Traceback (most recent call last):"
    assert STALE in ended.stderr
    assert PACKAGE not in ended.stderr
    assert footer == "noclobber: 1 error; the report is in report.json"
    assert ended.status == 1
    document = json.loads((folder / "report.json").read_text())
    assert document["program"]["argv"] == ["main.py", "--format", "x"]
    assert document["program"]["status"] == 1
    assert [one["code"] for one in document["findings"]] == ["NC101"]
    assert sorted(path.name for path in folder.iterdir() if path.suffix == ".unfinished") == []


def test_report_shows_it_in_every_format(saved: tuple[Path, Ended]) -> None:
    folder, _ = saved
    shown = {
        form: noclobber(["report", "report.json", "--format", form], folder) for form in ("full", "concise", "github")
    }
    assert all((ended.status, ended.stderr) == (1, "") for ended in shown.values())
    assert "error[NC101]: " in shown["full"].stdout
    assert "\x1b[" not in shown["full"].stdout
    assert shown["concise"].stdout.startswith("main.py:4:1: NC101 ")
    assert shown["github"].stdout.startswith("::error file=main.py,line=4,")
    text = (folder / "report.json").read_text()
    assert noclobber(["report", "-", "--format", "json"], folder, stdin=text).stdout == text
    colored = noclobber(["report", "report.json"], folder, env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b[" in colored
    narrow = noclobber(["report", "report.json"], folder, env={"PYTHONIOENCODING": "ascii"})
    assert narrow.status == 1


@pytest.mark.parametrize("words", [["-"], ["-c"], ["-m", "main"]], ids=lambda words: words[0])
def test_the_lines_of_every_kind_of_program(tmp_path: Path, words: list[str]) -> None:
    write(tmp_path, {"main.py": BROKEN, "rich.py": "1 / 0"})
    text = (tmp_path / "main.py").read_text()
    ended = noclobber(["run", *words, *([text] if words == ["-c"] else [])], tmp_path, stdin=text)
    where = {"-": "<stdin>", "-c": "<string>", "-m": "main.py"}[words[0]]
    assert f"--> {where}:4:1\n" in ended.stderr
    assert "4 | h += 1\n" in ended.stderr
    assert ended.stderr.index("Traceback") < ended.stderr.index("error[NC101]") < ended.stderr.index("next: ")
    assert ended.status == 1


def test_a_program_that_goes_on_after_the_error(tmp_path: Path) -> None:
    text = """
        import os
        os.environ["OMP_NUM_THREADS"] = "1"
        import torch
        h = torch.ones(2, requires_grad=True).exp()
        h.mul_(2)
        try:
            h.sum().backward()
        except RuntimeError as error:
            print(str(error).splitlines()[0], flush=True)
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        print(torch.get_num_threads(), flush=True)
        """
    write(tmp_path, {"main.py": text})
    ended = noclobber(["run", "--format", "concise", "main.py"], tmp_path)
    first, *counts = ended.stdout.splitlines()
    assert first.startswith(STALE)
    assert counts[-2:] == ["1", "1"]
    assert ended.stderr.count("NC101") == 1
    assert ended.stderr.startswith("main.py:5:1: NC101 ")
    assert ended.status == 1


def test_a_program_without_a_finding(tmp_path: Path) -> None:
    text = """
        import sys, torch
        from torch.utils.data import DataLoader
        x = torch.ones(2, requires_grad=True)
        loader = DataLoader(torch.ones(4, 2), num_workers=2, multiprocessing_context="fork")
        print([(x * batch).sum().backward() for batch in loader])
        print(type(torch.__spec__).__module__, [type(finder).__module__ for finder in sys.meta_path][:1])
        """
    write(tmp_path, {"main.py": text})
    ended = noclobber(["run", "main.py"], tmp_path)
    assert ended.stdout.startswith("[None, None, None, None]\n_frozen_importlib ")
    assert "noclobber.session.imports" not in ended.stdout
    assert ended.stderr == "noclobber: nothing found in 4 backward calls of 3 processes\n"
    assert ended.status == 0


NONE = "no backward ran: nothing was checked"


@pytest.mark.parametrize(
    ("end", "status"),
    [("import no_such_module", 1), ("import sys; sys.exit(3)", 3), ("import os; os._exit(4)", 4), ("", 0)],
    ids=["import", "exit", "_exit", "end"],
)
@pytest.mark.parametrize("format", ["full", "concise", "github", "sarif", "junit", "html"])
def test_a_program_that_ran_no_backward_was_not_checked(tmp_path: Path, format: str, end: str, status: int) -> None:
    text = f"import torch\nloss = torch.ones(3, requires_grad=True).exp().sum()\n{end}\n"
    write(tmp_path, {"main.py": text})
    ended = noclobber(["run", "--format", format, "main.py"], tmp_path)
    assert (ended.stderr.count(NONE), ended.status) == (1, status)


def test_what_was_checked_before_a_failure_is_said(tmp_path: Path) -> None:
    text = """
        import torch
        for _ in range(3):
            torch.ones(3, requires_grad=True).exp().sum().backward()
        raise SystemExit(2)
        """
    write(tmp_path, {"main.py": text})
    ended = noclobber(["run", "-o", "report.json", "-f", "json", "main.py"], tmp_path)
    said = "noclobber: nothing found in 3 backward calls, until the program failed"
    assert ended.stderr == f"{said}; the report is in report.json\n"
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["coverage"]["backwards"], report["coverage"]["raised"]) == (3, 0)
    assert noclobber(["report", "report.json"], tmp_path).stdout == f"{said}\n"


def test_a_torch_that_is_not_pytorch(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": "import torch", "torch.py": ""})
    ended = fresh(["run", "main.py"], tmp_path)
    assert ended.stderr == f"noclobber: nothing to watch: `torch` is {tmp_path}/torch.py, not PyTorch\n"
    assert ended.status == 0


def test_a_torch_that_a_daemon_still_imports(tmp_path: Path) -> None:
    text = """
        import sys, threading
        threading.Thread(target=__import__, args=("torch",), daemon=True).start()
        while "torch" not in sys.modules:
            pass
        """
    write(tmp_path, {"main.py": text, "torch.py": "import time\ntime.sleep(60)"})
    ended = fresh(["run", "main.py"], tmp_path)
    assert ended.stderr == "noclobber: nothing was watched: the program ended while it imported torch\n"


def test_devices_and_links_are_written_through(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": "", "kept.json": "old"})
    (tmp_path / "link.json").symlink_to("kept.json")
    assert noclobber(["run", "-o", "/dev/null", "main.py"], tmp_path).status == 0
    assert not Path("/dev/null").is_file()
    assert noclobber(["run", "--format", "json", "-o", "link.json", "main.py"], tmp_path).status == 0
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "kept.json").read_text())["findings"] == []


def test_json_without_a_file_is_all_that_stderr_gets(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": "print('out')"})
    ended = fresh(["run", "--format", "json", "main.py"], tmp_path)
    assert ended.stdout == "out\n"
    assert json.loads(ended.stderr)["program"]["torch"] is None


@pytest.mark.smoke
def test_explain(tmp_path: Path) -> None:
    page = noclobber(["explain", "NC101"], tmp_path)
    assert page.stdout.startswith("NC101 stale-save: ")
    assert noclobber(["explain", "stale-save"], tmp_path) == noclobber(["explain", "nc101"], tmp_path) == page
    both = noclobber(["explain", "NC101", "nc204"], tmp_path)
    assert both.stdout == page.stdout + "\n" + noclobber(["explain", "NC204"], tmp_path).stdout
    listed = noclobber(["explain"], tmp_path).stdout.splitlines()
    assert [line.split()[:2] for line in listed if line.startswith("NC10")][:1] == [["NC101", "stale-save"]]
    pasted = noclobber(["explain", STALE], tmp_path)
    assert "NC101" in pasted.stdout
    assert noclobber(["explain", *STALE.split()], tmp_path) == pasted
    assert noclobber(["explain", "-"], tmp_path, stdin=f"Traceback\nRuntimeError: {STALE}\n").stdout == pasted.stdout
    assert (page.status, page.stderr, pasted.status, pasted.stderr) == (0, "", 0, "")


def test_explain_takes_beginnings_of_codes_and_several_operators(tmp_path: Path) -> None:
    listed = noclobber(["explain"], tmp_path).stdout
    of_one = noclobber(["explain", "nc1"], tmp_path)
    assert of_one.stdout == "".join(line for line in listed.splitlines(keepends=True) if line.startswith("NC1"))
    both = noclobber(["explain", "relu", "NC101", "exp"], tmp_path)
    alone = [noclobber(["explain", one], tmp_path).stdout for one in ("relu", "NC101", "exp")]
    assert (both.stdout, both.status) == ("\n".join(alone), 0)
    part = noclobber(["explain", "exp", "zzzz"], tmp_path)
    assert (part.stdout, part.status) == (alone[2], 2)
    assert part.stderr.startswith("noclobber: error: no rule `zzzz`")


def test_explain_says_what_to_paste(tmp_path: Path) -> None:
    ended = noclobber(["explain", "ZeroDivisionError: division by zero"], tmp_path)
    assert (ended.status, ended.stdout) == (1, "")
    assert ended.stderr.startswith("noclobber: this is not one of PyTorch's in-place errors\nPaste the error ")


def test_version(tmp_path: Path) -> None:
    ended = noclobber(["--version"], tmp_path)
    assert ended.stdout.startswith("noclobber")
    assert ended.status == 0


@pytest.mark.parametrize(("options", "codes"), [([], ["NC202"]), (["--no-contents"], [])])
def test_bytes_are_compared_unless_it_is_told_not_to(tmp_path: Path, options: list[str], codes: list[str]) -> None:
    pytest.importorskip("numpy")
    write(
        tmp_path,
        {
            "main.py": """
            import torch
            h = torch.ones(2, requires_grad=True).sigmoid()
            h.detach().numpy()[:] = 0
            h.sum().backward()
            """
        },
    )
    ended = noclobber(["run", *options, "--format", "json", "-o", "report.json", "main.py"], tmp_path)
    document = json.loads((tmp_path / "report.json").read_text())
    assert [finding["code"] for finding in document["findings"]] == codes
    assert document["coverage"]["contents"] == bool(codes)
    assert ended.status == len(codes)


def test_errors_that_the_program_catches(tmp_path: Path) -> None:
    """Of a backward they are in the report: its gradients are missing. A refused write has changed nothing."""
    program = """
        import torch
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.mul_(2)
        for fails in (lambda: y.sum().backward(), lambda: x.mul_(2)):
            try:
                fails()
            except RuntimeError:
                print("caught")
        """
    write(tmp_path, {"train.py": program})
    ended = noclobber(["run", "--format", "concise", "train.py"], tmp_path)
    assert (ended.status, ended.stdout) == (1, "caught\ncaught\n")
    assert [line.split(": ")[1][:5] for line in ended.stderr.splitlines()] == ["NC101"]


def test_a_blank_line_stands_between_a_traceback_and_the_report(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": BROKEN, "left.py": BROKEN.replace("h.sum().backward()", "sys.exit('left')")})
    assert "\n\nerror[NC101]: " in noclobber(["run", "main.py"], tmp_path).stderr
    assert noclobber(["run", "left.py"], tmp_path).stderr.startswith("left\nnoclobber: ")
