"""The range of releases is the same wherever it is said; a release that is newer is tried, and told of."""

import sys
import threading
import tomllib
import warnings
from pathlib import Path

import pytest
import torch
from torch.torch_version import TorchVersion

import noclobber
from noclobber.observe.torch_api import private, releases
from noclobber.observe.torch_api.autograd import engine_state
from noclobber.render.formats import terminal

ROOT = Path(__file__).parents[3]
RANGE = f"torch {releases.OLDEST} to {releases.NEWEST} are supported"


def test_everybody_says_the_same_range():
    assert (
        f"torch>={releases.OLDEST}" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    )
    for page in ("README.md", "docs/compatibility.md"):
        assert f"{releases.OLDEST} to {releases.NEWEST}" in (ROOT / page).read_text()
    with pytest.raises(noclobber.UnsupportedTorch, match=RANGE):
        private.lookup("_C._no_such_name")


def watched():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        with noclobber.watch() as seen:
            x = torch.ones(2, requires_grad=True)
            y = x.exp()
            y.data.zero_()
            y.sum().backward()
    return seen.report


@pytest.mark.parametrize("version", ["2.16.0", "2.16.0a0+gitabc", "2.20.1.dev20270101+cpu", "3.0.0"])
def test_a_newer_release_is_tried_and_told_of(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    report = watched()
    assert [finding.code for finding in report.findings] == ["NC201"]
    release = ".".join(version.split(".")[:2])
    note = f"torch {release} is newer than any release that noclobber was tested with ({releases.NEWEST})"
    assert report.coverage.notes == (note,)
    assert f"\nnote: {note}\n" in terminal.footer(report)
    assert read_again(report).coverage == report.coverage


@pytest.mark.parametrize("version", ["2.10.0", "2.12.1", "2.13.0+cpu", "2.15.3", torch.__version__])
def test_nothing_is_told_of_those_that_were_tested(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    assert watched().coverage.notes == ()


def read_again(report):
    """Written and read again."""
    return type(report).from_json(report.to_json())


def test_what_a_thread_keeps_of_a_backward_call_is_counted():
    """torch 2.10 and 2.11 count no reference for it, and give one back."""
    call, other = object(), object()
    before = [sys.getrefcount(one) for one in (call, other)]
    for _ in range(10):
        engine_state.set_backward_call(call)
        engine_state.set_backward_call(other)
    assert [sys.getrefcount(one) for one in (call, other)] == [before[0], before[1] + 1]
    engine_state.set_backward_call(None)
    assert [sys.getrefcount(one) for one in (call, other)] == before


def test_a_thread_keeps_nothing_of_a_backward_call_that_has_ended():
    """What a thread still has when it ends is freed by C++, which may then wait for an interpreter that is gone."""
    left = []

    def train():
        with noclobber.watch():
            torch.ones(3, requires_grad=True).exp().sum().backward()
        left.append(torch._C._is_key_in_tls(engine_state.CALL))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert left == [not hasattr(torch._C, "_remove_obj_from_tls")]
