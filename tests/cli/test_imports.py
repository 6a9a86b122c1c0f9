"""`after_import`: called once, right after the module has been imported, with nothing of it changed."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import traceback
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path

import pytest

import noclobber
from noclobber.session.imports import after_import

NAME = "imported_for_a_test"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    # Without pytest's own finder, which has loaders of its own.
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if isinstance(finder, type)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path / f"{NAME}.py"
    sys.modules.pop(NAME, None)


def test_called_once_when_the_module_is_complete(module: Path) -> None:
    module.write_text("x = 1\nx = 2\n")
    finders = list(sys.meta_path)
    seen: list[int] = []
    after_import(NAME, lambda: seen.append(sys.modules[NAME].x))
    assert seen == []
    importlib.import_module(NAME)
    importlib.import_module(NAME)
    assert seen == [2]
    assert sys.meta_path == finders


def test_the_module_is_as_it_would_have_been(module: Path) -> None:
    text = "import sys\nframes, f = [], sys._getframe()\nwhile f := f.f_back: frames.append(f.f_globals['__name__'])\n"
    module.write_text(text)
    after_import(NAME, lambda: None)
    imported = importlib.import_module(NAME)
    assert type(imported.__spec__) is ModuleSpec
    assert type(imported.__loader__) is SourceFileLoader
    assert "noclobber.session.imports" not in imported.frames
    assert vars(imported.__spec__).keys() == vars(importlib.__spec__).keys()


def test_already_imported(module: Path) -> None:
    module.write_text("")
    importlib.import_module(NAME)
    seen: list[int] = []
    after_import(NAME, lambda: seen.append(1))
    assert seen == [1]


def test_a_failed_import_does_not_count(module: Path) -> None:
    module.write_text("1 / 0")
    seen: list[int] = []
    after_import(NAME, lambda: seen.append(1))
    with pytest.raises(ZeroDivisionError) as raised:
        importlib.import_module(NAME)
    assert seen == []
    frames = traceback.extract_tb(raised.tb)
    assert [frame.filename for frame in frames if frame.filename.endswith("noclobber/session/imports.py")] == []
    module.write_text("")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert seen == [1]


def test_a_module_that_is_not_there(module: Path) -> None:
    after_import(NAME, lambda: None)
    with pytest.raises(ModuleNotFoundError, match=NAME):
        importlib.import_module(NAME)
    assert importlib.util.find_spec(NAME) is None


def test_to_look_for_a_module_is_not_to_import_it(module: Path) -> None:
    module.write_text("")
    seen: list[int] = []
    after_import(NAME, lambda: seen.append(1))
    assert importlib.util.find_spec(NAME) is not None
    assert seen == []
    importlib.import_module(NAME)
    assert seen == [1]


def test_other_threads_wait_for_the_call(module: Path) -> None:
    module.write_text("import time; time.sleep(0.05)")
    order: list[str] = []

    def slow() -> None:
        threading.Event().wait(0.1)
        order.append("called")

    after_import(NAME, slow)
    threads = [
        threading.Thread(target=lambda: (importlib.import_module(NAME), order.append("imported"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert order == ["called", *["imported"] * 3]


@pytest.fixture
def thawed() -> Iterator[None]:
    """The tests freeze what is there at their beginning. A program has frozen nothing."""
    gc.unfreeze()
    yield
    gc.collect()  # garbage that is frozen stays for good
    gc.freeze()


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("is_on", [True, False])
def test_no_garbage_is_collected_while_a_module_is_imported(module: Path, is_on: bool, fails: bool) -> None:
    """What an import makes stays. To go through it again and again takes a fifth of `import torch` (CPython 3.11)."""
    module.write_text(f"import gc; on = gc.isenabled()\n{'1 / 0' if fails else ''}")
    seen: list[bool] = []
    after_import(NAME, lambda: seen.append(sys.modules[NAME].on))
    if not is_on:
        gc.disable()
    try:
        if fails:
            with pytest.raises(ZeroDivisionError):
                importlib.import_module(NAME)
        else:
            importlib.import_module(NAME)
        assert gc.isenabled() is is_on
    finally:
        gc.enable()
    assert seen == ([] if fails else [False])
    assert not gc.get_freeze_count()


@pytest.mark.usefixtures("thawed")
def test_what_the_program_froze_stays_frozen(module: Path) -> None:
    module.write_text("")
    after_import(NAME, lambda: None)
    gc.collect()
    gc.freeze()
    importlib.import_module(NAME)
    assert gc.get_freeze_count()


@pytest.mark.usefixtures("thawed")
def test_a_start_that_imports_nothing_makes_no_garbage_old() -> None:
    with noclobber.watch():
        pass
    gc.collect()
    young: list[object] = []
    with noclobber.watch():
        assert not any(one is young for one in gc.get_objects(generation=2))
