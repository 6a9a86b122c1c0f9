"""Code executed from a text which is no file: labels point into it where the text can be shown, else at the caller."""

import doctest
import linecache
import types

import pytest
import torch
from torch.fx import symbolic_trace

import noclobber
from noclobber.model.source import owner_of
from noclobber.observe.core.seen import sites

TEXT = """import torch
x = torch.ones(3, requires_grad=True)
y = x.exp()
y.add_(1)
y.sum().backward()
"""


def execute(path, *, shown=True):
    if shown:
        linecache.cache[path] = (len(TEXT), None, TEXT.splitlines(keepends=True), path)
    exec(compile(TEXT, path, "exec"), {"__name__": "executed"})


def labels(run, **how):
    """The role, path and line of each label."""
    with pytest.raises(noclobber.ClobberError), noclobber.watch(**how) as seen:
        run()
    (finding,) = seen.report.findings
    return {label.role: (label.span.path, label.span.line) for label in finding.labels}, finding


@pytest.mark.parametrize("contents", [False, True])
@pytest.mark.parametrize("path", ["<cell 3>", "<page.html>", "<ipython-input-7-0a1b>", "notebook cell 4"])
def test_labels_point_into_a_text_that_is_known(path, contents):
    found, finding = labels(lambda: execute(path), contents=contents)
    assert found == {"write": (path, 4), "save": (path, 3), "read": (path, 5)}
    assert "y.add_(1)" in noclobber_report(finding)


def noclobber_report(finding):
    from noclobber.render import window

    return window(finding)


def test_labels_point_at_the_caller_where_no_text_is_known():
    found, _ = labels(lambda: execute("<no text>", shown=False))
    assert {path for path, _ in found.values()} == {__file__}


def test_a_text_that_is_shown_later_is_pointed_into_from_then_on():
    labels(lambda: execute("<shown later>", shown=False))
    found, _ = labels(lambda: execute("<shown later>"))
    assert {path for path, _ in found.values()} == {"<shown later>"}


def test_whose_code_it_is_is_looked_up_once_without_a_text(monkeypatch):
    code, asked = compile("import torch; torch.ones(1, requires_grad=True).exp()", "<asked once>", "exec"), []
    monkeypatch.setattr(sites, "owner_of", lambda path: asked.append(path) or owner_of(path))
    with noclobber.watch():
        for _ in range(5):
            exec(code)
    assert asked.count("<asked once>") == 1


def test_labels_point_into_a_doctest():
    test = types.ModuleType("tested")
    test.__doc__ = "".join(f">>> {line}\n" for line in (*TEXT.splitlines()[:-1], "_ = y.sum().backward()"))
    runner = doctest.DocTestRunner(verbose=False)
    (example,) = doctest.DocTestFinder().find(test, "tested", globs={})
    runner.DIVIDER = ""
    with noclobber.watch() as seen:
        runner.run(example, out=lambda text: None)
    (finding,) = seen.report.findings
    assert {label.role: (label.span.path, label.span.line) for label in finding.labels} == {
        "write": ("<doctest tested[3]>", 1),
        "save": ("<doctest tested[2]>", 1),
        "read": ("<doctest tested[4]>", 1),
    }


def test_labels_point_at_the_caller_of_what_a_library_generated():
    """torch.fx writes code, and shows it in tracebacks."""

    def forward(x):
        y = x.exp()
        y.add_(1)
        return y

    traced = symbolic_trace(forward)
    found, _ = labels(lambda: traced(torch.ones(3, requires_grad=True)).sum().backward())
    assert {path for path, _ in found.values()} == {__file__}
