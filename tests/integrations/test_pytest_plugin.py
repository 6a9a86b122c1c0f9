"""`pytest --noclobber` on small suites, run as their authors would."""

from __future__ import annotations

import multiprocessing.util
import os
import subprocess
import warnings
from textwrap import dedent
from typing import Any

import pytest

import noclobber
from noclobber.render import render

pytest_plugins = ["pytester"]

SILENT = """
    import torch

    def wrong():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.data.mul_(2)
        y.sum().backward()

    def right():
        x = torch.ones(3, requires_grad=True)
        (x.exp() * 2).sum().backward()

    def cut_off():
        x = torch.ones(3, requires_grad=True)
        h = x * 2
        with torch.no_grad():
            h.mul_(3)
        h.sum().backward()

    def test_right():
        right()
    """


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported() -> None:
    """A run inside this process drops what it has imported, and torch cannot be imported twice."""
    program: dict[str, Any] = {}
    exec(dedent(SILENT), program)
    with warnings.catch_warnings(), noclobber.watch(contents=True) as seen:
        warnings.simplefilter("ignore")
        for name in ("wrong", "cut_off"):
            program[name]()
    assert render(seen.report, "concise")


def suite(pytester: pytest.Pytester, tests: str = "", *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_net=SILENT + tests)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", *options)


def test_it_does_nothing_unless_asked(pytester: pytest.Pytester) -> None:
    done = suite(pytester, "\n    def test_wrong():\n        wrong()\n")
    done.assert_outcomes(passed=2)
    done.stdout.no_fnmatch_line("*noclobber*watch*")


def test_a_silent_error_fails_its_test_with_the_report(pytester: pytest.Pytester) -> None:
    done = suite(pytester, "\n    def test_wrong():\n        wrong()\n", "--noclobber")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            "noclobber: watches every test",
            "error[[]NC201[]]: silent in-place write*",
            " --> test_net.py:*",
            "*y.data.mul_(2)*",
            "noclobber: watched 2 tests: 1 error",
            "FAILED test_net.py::test_wrong - noclobber: silent in-place write*",
        ]
    )


def test_the_setting_asks_too_and_the_option_wins(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nnoclobber = true\n")
    wrong = "\n    def test_wrong():\n        wrong()\n"
    suite(pytester, wrong).assert_outcomes(passed=1, failed=1)
    suite(pytester, wrong, "--no-noclobber").assert_outcomes(passed=2)


def test_a_warning_is_listed(pytester: pytest.Pytester) -> None:
    done = suite(pytester, "\n    def test_cut_off():\n        cut_off()\n", "--noclobber")
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(
        [
            "warning[[]NC208[]]: *",
            "*h.mul_(3)*",
            "NC208 test_net.py:*: warning in test_net.py::test_cut_off: *",
            "noclobber: watched 2 tests: 1 warning",
        ]
    )


@pytest.mark.parametrize("ci", ["", "true"])
def test_an_error_that_pytorch_raises_is_explained_once(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    monkeypatch.setenv("CI", ci)  # pytest shortens its summary only where it is empty
    stale = """
    def test_stale():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.mul_(2)
        y.sum().backward()

    def test_leaf():
        torch.ones(3, requires_grad=True).mul_(2)
    """
    done = suite(pytester, stale, "--noclobber")
    done.assert_outcomes(passed=1, failed=2)
    assert str(done.stdout).count("error[NC101]") == 1
    assert str(done.stdout).count("error[NC301]") == 1


def test_a_mark_ignores_codes_and_turns_contents_off(pytester: pytest.Pytester) -> None:
    marked = """
    import pytest

    @pytest.mark.noclobber(ignore=["NC201"])
    def test_ignored():
        wrong()

    def by_numpy():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.detach().numpy()[:] = 0
        y.sum().backward()

    @pytest.mark.noclobber(contents=False)
    def test_versions_only():
        by_numpy()

    def test_contents():
        by_numpy()
    """
    done = suite(pytester, marked, "--noclobber", "--strict-markers")
    done.assert_outcomes(passed=3, failed=1)
    done.stdout.fnmatch_lines(["FAILED test_net.py::test_contents*"])


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ('ignore=["silence"]', "`ignore` takes a list of codes such as [[]\"NC208\"], not 'silence'"),
        ('ignore=["NC999"]', "`ignore` takes a list of codes such as [[]\"NC208\"], not 'NC999'"),
        ('ignore="NC201"', "`ignore` takes a list of codes such as [[]\"NC208\"], not 'NC201'"),
        ("ignore=None", '`ignore` takes a list of codes such as [[]"NC208"], not None'),
        ("ignore=[5]", '`ignore` takes a list of codes such as [[]"NC208"], not 5'),
        ('contents="no"', "the mark `noclobber` takes `ignore=[[]...]` and `contents=False`"),
        ("content=False", "the mark `noclobber` takes `ignore=[[]...]` and `contents=False`"),
        ('"NC201"', "the mark `noclobber` takes `ignore=[[]...]` and `contents=False`"),
    ],
)
def test_a_mark_that_says_something_else_is_an_error_of_its_test(
    mark: str, said: str, pytester: pytest.Pytester
) -> None:
    tests = f"\n    import pytest\n\n    @pytest.mark.noclobber({mark})\n    def test_it(): pass\n"
    done = suite(pytester, tests, "--noclobber")
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["*ERROR at setup of test_it*", said])
    suite(pytester, tests).assert_outcomes(passed=2)


def test_a_mark_takes_beginnings_and_names(pytester: pytest.Pytester) -> None:
    marked = """
    import pytest

    @pytest.mark.noclobber(ignore=["NC2"])
    def test_beginning():
        wrong()

    @pytest.mark.noclobber(ignore=("silent-write",))
    def test_name():
        wrong()
    """
    done = suite(pytester, marked, "--noclobber")
    done.assert_outcomes(passed=3)
    done.stdout.fnmatch_lines(["noclobber: watched 3 tests: nothing found*(left out: 2 by mark)"])


def test_comments_and_settings_count_here_too(pytester: pytest.Pytester) -> None:
    tests = """
    def test_wrong():
        wrong()

    def test_commented():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.data.mul_(2)  # noclobber: ignore[NC201] meant
        y.sum().backward()
    """
    done = suite(pytester, tests, "--noclobber")
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(["noclobber: watched 3 tests: 1 error (left out: 1 by comment)"])
    pytester.makefile(".toml", pyproject='[tool.noclobber]\nignore = ["silent-write"]\n')
    ignored = suite(pytester, tests, "--noclobber")
    ignored.assert_outcomes(passed=3)
    ignored.stdout.fnmatch_lines(["noclobber: watched 3 tests: nothing found*(left out: 2 ignored)"])
    pytester.makefile(".toml", pyproject='[tool.noclobber]\nignored = ["NC201"]\n')
    refused = suite(pytester, tests, "--noclobber")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["ERROR: noclobber: [[]tool.noclobber[]] of *: `ignored` is unknown; there are *"])
    suite(pytester, tests).assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("fail_on", "failed", "said"),
    [("error", 1, "1 error, 1 warning"), ("warning", 2, "1 error, 1 warning"), ("never", 0, "1 error, 1 warning")],
)
def test_the_settings_say_what_fails_a_test(pytester: pytest.Pytester, fail_on: str, failed: int, said: str) -> None:
    pytester.makefile(".toml", pyproject=f'[tool.noclobber]\nfail-on = "{fail_on}"\n')
    tests = "\n    def test_wrong():\n        wrong()\n\n    def test_cut_off():\n        cut_off()\n"
    done = suite(pytester, tests, "--noclobber")
    done.assert_outcomes(passed=3 - failed, failed=failed)
    done.stdout.fnmatch_lines([f"noclobber: watched 3 tests: {said}"])
    assert all(f"{word}[NC2" in str(done.stdout) for word in ("error", "warning"))


def test_an_error_that_a_test_expects_does_not_fail_it(pytester: pytest.Pytester) -> None:
    expecting = """
    import pytest

    def test_expected():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            y.sum().backward()
        with pytest.raises(RuntimeError, match="a leaf Variable"):
            x.mul_(2)
    """
    done = suite(pytester, expecting, "--noclobber")
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["noclobber: watched 2 tests: nothing found in 1 backward call; 1 more raised an error"])


def test_the_fixture_gives_what_was_found_and_fails_nothing(pytester: pytest.Pytester) -> None:
    using = """
    def test_found(noclobber):
        assert noclobber.findings == ()
        wrong()
        assert [one.code for one in noclobber.findings] == ["NC201"]
        assert noclobber.report.coverage.contents
    """
    done = suite(pytester, using)
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["noclobber: watched 1 test: 1 error"])
    suite(pytester, using, "--noclobber").assert_outcomes(passed=2)


def test_fixtures_and_unittest_classes_are_watched(pytester: pytest.Pytester) -> None:
    more = """
    import unittest
    import pytest

    @pytest.fixture
    def saved():
        x = torch.ones(3, requires_grad=True)
        return x.exp()

    def test_of_a_fixture(saved):
        saved.data.mul_(2)
        saved.sum().backward()

    class TestOld(unittest.TestCase):
        def setUp(self):
            self.y = torch.ones(3, requires_grad=True).exp()

        def test_old(self):
            self.y.data.mul_(2)
            self.y.sum().backward()

    @pytest.fixture
    def late():
        yield
        wrong()

    def test_torn_down(late):
        pass
    """
    done = suite(pytester, more, "--noclobber")
    done.assert_outcomes(passed=2, failed=2, errors=1)
    done.stdout.fnmatch_lines(["noclobber: watched 4 tests: 3 errors"])


def test_what_is_expected_to_fail_stays_so(pytester: pytest.Pytester) -> None:
    expected = """
    import pytest

    @pytest.mark.xfail
    def test_fails():
        wrong()
        assert False

    @pytest.mark.xfail(strict=True)
    def test_wrong():
        wrong()
    """
    done = suite(pytester, expected, "--noclobber")
    done.assert_outcomes(passed=1, xfailed=2)
    assert done.ret == pytest.ExitCode.OK


def test_the_workers_of_xdist_report_too(pytester: pytest.Pytester) -> None:
    tests = "\n    def test_wrong():\n        wrong()\n\n    def test_cut_off():\n        cut_off()\n"
    pytester.makepyfile(test_net=SILENT + tests)
    done = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--noclobber", "-n", "2"
    )
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(
        ["NC208 *: warning in *test_cut_off: *", "noclobber: watched 3 tests: 1 error, 1 warning"]
    )


def test_a_test_without_torch_imports_none(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\n\ndef test_it():\n    assert 'torch' not in sys.modules\n")
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--noclobber")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["noclobber: watched 1 test: no backward ran: nothing was checked"])


def test_a_failure_before_torch_is_imported_stays_as_it_is_and_imports_none(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys, unittest
        import pytest

        def test_fails():
            assert 1 == 2

        def test_skips():
            pytest.skip("no")

        def test_lacks_a_module():
            pytest.importorskip("there_is_no_such_module")

        def test_is_expected():
            pytest.xfail("later")

        @pytest.mark.xfail
        def test_is_marked():
            assert 0

        @pytest.mark.skip
        def test_is_left_out():
            pass

        class TestOld(unittest.TestCase):
            def test_skips(self):
                self.skipTest("no")

        def test_last():
            assert "torch" not in sys.modules

        def test_is_interrupted():
            raise KeyboardInterrupt
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--noclobber")
    done.assert_outcomes(passed=1, failed=1, skipped=4, xfailed=2)
    assert done.ret == pytest.ExitCode.INTERRUPTED
    done.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_a_chained_error_has_no_frames_of_noclobber(pytester: pytest.Pytester) -> None:
    chained = """
    def test_chained():
        y = torch.ones(3, requires_grad=True).exp()
        y.mul_(2)
        try:
            y.sum().backward()
        except RuntimeError as error:
            raise ValueError("a reason") from error
    """
    done = suite(pytester, chained, "--noclobber")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.no_fnmatch_line("*src/noclobber*")
    done.stdout.no_fnmatch_line("*<noclobber*")
    assert str(done.stdout).count("error[NC101]") == 1


SUBTESTS = """
    import unittest

    def test_in_a_subtest(subtests):
        with subtests.test("a"):
            wrong()
        with subtests.test("b"):
            right()

    def test_raised_in_a_subtest(subtests):
        with subtests.test("a"):
            y = torch.ones(3, requires_grad=True).exp()
            y.mul_(2)
            y.sum().backward()

    class TestOld(unittest.TestCase):
        def test_old(self):
            with self.subTest("a"):
                wrong()
    """


def test_an_error_in_a_subtest_fails_the_test(pytester: pytest.Pytester) -> None:
    done = suite(pytester, SUBTESTS, "--noclobber")
    done.stdout.fnmatch_lines(["noclobber: watched 4 tests: 3 errors"])
    for line in ("*.py::test_in_a_subtest - noclobber: silent*", "*.py::TestOld::test_old - noclobber: silent*"):
        done.stdout.fnmatch_lines([f"FAILED {line}"])
    assert str(done.stdout).count("error[NC201]") == 2
    assert str(done.stdout).count("error[NC101]") == 1


def test_an_expected_error_matches_as_without_noclobber_and_is_no_reason(pytester: pytest.Pytester) -> None:
    expecting = """
    import pytest

    def stale():
        y = torch.ones(3, requires_grad=True).exp()
        y.mul_(2)
        y.sum().backward()

    def test_expected():
        with pytest.raises(RuntimeError, match=r"^one of .*check_nan=False\\)\\.$"):
            stale()
        with pytest.raises(RuntimeError, match=r"^a leaf Variable .* in-place operation\\.$"):
            torch.ones(3, requires_grad=True).mul_(2)

    def test_fails_for_another_reason():
        with pytest.raises(RuntimeError):
            stale()
        assert 1 == 2
    """
    done = suite(pytester, expecting, "--noclobber")
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.no_fnmatch_line("*NC*")
    done.stdout.fnmatch_lines(["noclobber: watched 3 tests: nothing found in 1 backward call; 2 more raised an error"])


def test_unittest_shows_why_an_error_was_raised(pytester: pytest.Pytester) -> None:
    old = """
    import unittest

    class TestOld(unittest.TestCase):
        def test_old(self):
            torch.ones(3, requires_grad=True).mul_(2)
    """
    done = suite(pytester, old, "--noclobber")
    done.assert_outcomes(passed=1, failed=1)
    assert str(done.stdout).count("error[NC301]") == 1


OUTSIDE = """
import torch
X = torch.ones(3, requires_grad=True)
Y = X.exp()

def test_of_a_save_at_import():
    Y.data.mul_(2)
    Y.sum().backward()

Z = torch.ones(3, requires_grad=True).exp()
Z.data.mul_(2)
Z.sum().backward()
"""


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_test_files_are_watched_from_their_import(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(test_save=OUTSIDE)
    done = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--noclobber", "--tb=line", *options
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        [
            "*/test_save.py:6: noclobber: silent in-place write: backward reads other bytes than were saved",
            "NC201 test_save.py:10: error outside of tests: *",
            "noclobber: watched 1 test: 2 errors",
        ]
    )
    done.stdout.no_fnmatch_line("*saved here*")


def test_an_error_outside_of_tests_fails_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_save=OUTSIDE.replace("    Y.data.mul_(2)\n", ""))
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--noclobber")
    done.assert_outcomes(passed=1)
    assert done.ret == pytest.ExitCode.TESTS_FAILED


def test_the_summary_names_what_was_not_watched(pytester: pytest.Pytester) -> None:
    unseen = """
    import os

    def test_transform():
        torch.func.grad(lambda x: x.exp().sum())(torch.ones(3))

    def test_fork():
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    """
    done = suite(pytester, unseen, "--noclobber")
    done.assert_outcomes(passed=3)
    done.stdout.fnmatch_lines(
        [
            "noclobber: watched 3 tests: nothing found in what was watched (1 backward call)",
            "not watched: *; processes that tests fork",
        ]
    )
    assert str(done.stdout).count("not watched") == 1


def test_the_summary_names_python_programs_that_tests_start(pytester: pytest.Pytester) -> None:
    starting = """
    import multiprocessing, subprocess, sys

    def test_other_programs():
        subprocess.run(["true"], check=True)
        multiprocessing.resource_tracker.ensure_running()

    def test_spawn():
        child = multiprocessing.get_context("spawn").Process(target=print)
        child.start()
        child.join()
    """
    done = suite(pytester, starting, "--noclobber", "-k", "other")
    done.stdout.no_fnmatch_line("not watched*")
    native = multiprocessing.util.spawnv_passfds, subprocess._fork_exec, os.system  # type: ignore[attr-defined]
    done = suite(pytester, starting, "--noclobber")
    done.assert_outcomes(passed=3)
    done.stdout.fnmatch_lines(
        [
            "noclobber: watched 3 tests: nothing found in what was watched (1 backward call)",
            "not watched: Python programs that tests start",
        ]
    )
    assert native == (multiprocessing.util.spawnv_passfds, subprocess._fork_exec, os.system)  # type: ignore[attr-defined]


DOCTESTS = '''
def raised():
    """
    >>> import torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> y = x.exp()
    >>> z = y.mul_(2)
    >>> y.sum().backward()
    """

def leaf():
    """
    >>> import torch
    >>> torch.ones(3, requires_grad=True).add_(1)
    """

def expected():
    """
    >>> import torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> y = x.exp()
    >>> z = y.mul_(2)
    >>> y.sum().backward()
    Traceback (most recent call last):
    RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: ...
    """
'''


@pytest.mark.parametrize("more", [[], ["--doctest-continue-on-failure"]])
def test_an_error_of_a_doctest_has_its_report(pytester: pytest.Pytester, more: list[str]) -> None:
    pytester.makepyfile(net=DOCTESTS)
    options = ("--doctest-modules", "-o", "doctest_optionflags=ELLIPSIS", "net.py", *more)
    bare, done = suite(pytester, "", *options), suite(pytester, "", *options, "--noclobber")
    for one in (bare, done):
        one.assert_outcomes(passed=1, failed=2)
    bare.stdout.no_fnmatch_line("*NC*")
    done.stdout.fnmatch_lines(
        [
            "UNEXPECTED EXCEPTION: RuntimeError('a leaf Variable*",
            "error[[]NC301[]]: *",
            "UNEXPECTED EXCEPTION: ClobberError('one of the variables*",
            "error[[]NC101[]]: *",
            " --> <doctest net.raised[[]3[]]>:1:5",
            "1 | z = y.mul_(2)",
            "noclobber: watched 3 tests: 2 errors",
        ]
    )


def test_noclobbers_own_failures_are_in_the_summary(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(event: object) -> None:
        raise KeyError(event.__class__.__name__)

    monkeypatch.setattr("noclobber.rules.explain", fails)
    done = suite(pytester, "\n    def test_wrong():\n        wrong()\n", "--noclobber")
    done.stdout.fnmatch_lines(["not watched: some findings: KeyError: *"])


def test_a_junit_file_has_the_report_and_a_debugger_does_not_stop(pytester: pytest.Pytester) -> None:
    wrong = "\n    def test_wrong():\n        wrong()\n"
    done = suite(pytester, wrong, "--noclobber", "--junitxml=out.xml", "--pdb", "--color=yes")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.no_fnmatch_line("*(Pdb)*")
    assert "\x1b[1;31merror[NC201]" in str(done.stdout)
    written = (pytester.path / "out.xml").read_text()
    assert 'message="noclobber: silent in-place write: backward reads other bytes than were saved"' in written
    assert "--&gt; test_net.py:6:5" in written
    assert "help: " in written
    assert "x1B" not in written


def test_what_pytest_does_not_show_is_listed(pytester: pytest.Pytester) -> None:
    tests = """
    import pytest

    @pytest.mark.skip
    def test_left_out():
        pass

    def test_skips():
        wrong()
        pytest.skip("no")

    @pytest.mark.xfail
    def test_expected_to_fail():
        wrong()

    @pytest.mark.parametrize("case", range(3))
    def test_cut_off(case):
        cut_off()
    """
    done = suite(pytester, tests, "--noclobber")
    done.assert_outcomes(passed=4, skipped=2, xfailed=1)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(
        [
            "NC201 test_net.py:*: error in 2 tests (first test_net.py::test_skips): *",
            "NC208 test_net.py:*: warning in 3 tests (first test_net.py::test_cut_off[[]0[]]): *",
            "noclobber: watched 5 tests: 1 error, 1 warning",
        ]
    )


def test_a_silent_step_of_shards_fails_its_test(pytester: pytest.Pytester) -> None:
    tests = """
    def test_shards(tmp_path):
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        first, second = net(torch.ones(2, 3)).sum(), net(torch.ones(2, 3)).square().sum()
        first.backward()
        optimizer.step()
        second.backward()
        dist.destroy_process_group()
    """
    pytester.makepyfile(test_net=SILENT + tests)
    done = pytester.runpytest_subprocess("--noclobber")  # FSDP cannot be imported twice in a process
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["error[[]NC103[]]: *", "*optimizer.step()*"])


LIBRARY = """
import torch

def triple(h):
    with torch.no_grad():
        h.mul_(3)
    return h
"""


@pytest.mark.parametrize("packages", ["", "site-packages"], ids=["own code", "a library"])
def test_one_place_is_shown_once_with_the_number_of_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, packages: str
) -> None:
    folder = pytester.mkdir(packages) if packages else pytester.path
    (folder / "tripling.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(folder)
    tests = """
    import tripling

    def test_one():
        tripling.triple(torch.ones(3, requires_grad=True) * 2).sum().backward()

    def test_two():
        tripling.triple(torch.ones(3, requires_grad=True) * 2).sum().backward()
    """
    done = suite(pytester, tests, "--noclobber")
    done.assert_outcomes(passed=3)
    path = f"{packages}/tripling.py".lstrip("/")
    done.stdout.fnmatch_lines(
        [
            f"NC208 {path}:6: warning in 2 tests (first test_net.py::test_one): *",
            "noclobber: watched 3 tests: 1 warning",
        ]
    )
    assert str(done.stdout).count("warning[NC208]") == 1
    assert str(done.stdout).count("NC208 ") == 1
    short = suite(pytester, tests, "--noclobber", "--tb=line")
    assert "warning[NC208]" not in str(short.stdout)
    short.stdout.fnmatch_lines([f"NC208 {path}:6: *"])


def test_the_fixture_has_a_short_name(pytester: pytest.Pytester) -> None:
    using = (
        "\n    def test_it(noclobber):\n        wrong()\n        assert repr(noclobber) == '<noclobber: 1 finding>'\n"
    )
    suite(pytester, using).assert_outcomes(passed=2)


def test_a_baseline_that_is_missing_names_the_command(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", pyproject='[tool.noclobber]\nbaseline = "known.json"\n')
    done = suite(pytester, "", "--noclobber")
    done.stderr.fnmatch_lines(["*`noclobber run --update-baseline` makes it"])


def test_an_error_that_ends_a_thread_is_explained(pytester: pytest.Pytester) -> None:
    tests = """
    import threading

    def stale():
        y = torch.ones(3, requires_grad=True).exp()
        y.mul_(2)
        y.sum().backward()

    def test_thread():
        thread = threading.Thread(target=stale)
        thread.start()
        thread.join()
    """
    done = suite(pytester, tests, "--noclobber")
    done.assert_outcomes(passed=2, warnings=1)
    assert str(done.stdout).count("error[NC101]") == 1
    done.stdout.no_fnmatch_line("*noclobber/*.py*")
