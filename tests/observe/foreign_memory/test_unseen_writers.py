"""What can write the memory of a device without asking for it, and is known for it."""

import mmap
import os
import sys
from pathlib import Path

import pytest
import torch
import xxhash

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.detectors.foreign_memory import unseen_writers


def test_an_extension_that_is_built_against_torch_is_known_by_its_file(tmp_path):
    parts = Path(torch.__file__).parent
    assert any(map(unseen_writers.is_built_against_torch, map(str, parts.glob("_C*.*"))))
    assert not unseen_writers.is_built_against_torch(str(Path(xxhash._xxhash.__file__)))
    assert unseen_writers.is_built_against_torch(str(tmp_path / "gone.so"))


def test_extensions_are_those_of_this_process_but_for_torch():
    files = list(unseen_writers._extensions())
    assert xxhash._xxhash.__file__ in files
    assert not [file for file in files if Path(torch.__file__).parent in Path(file).parents]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is mapped")
def test_extensions_are_found_beside_a_file_whose_name_is_no_utf_8(tmp_path):
    name = os.fsencode(tmp_path) + b"/caf\xe9.bin"
    with open(name, "wb+") as file:
        file.write(b"0")
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
            assert name in unseen_writers._MAPS.read_bytes()
            assert xxhash._xxhash.__file__ in unseen_writers._extensions()


def test_a_module_that_is_imported_later_is_looked_at(monkeypatch):
    there = []
    monkeypatch.setattr(unseen_writers, "_extensions", lambda: there)
    writers = unseen_writers.UnseenWriters(CONTEXT)
    assert not writers.may_write()
    there.append("/nowhere/built_against_torch.so")
    assert not writers.may_write()
    monkeypatch.setitem(sys.modules, "built_against_torch", torch)
    assert writers.may_write()


def test_the_calls_that_are_replaced_are_put_back():
    def held():
        return [vars(owner).get(name) for owner, name in calls]

    calls = [(torch.cuda.CUDAGraph, "replay"), (torch.UntypedStorage, "_share_cuda_")]
    before = held()
    with noclobber.watch():
        assert None not in held()
        assert held() != before
    assert held() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no cuda device is here")
def test_a_graph_that_is_replayed_before_backward_is_found():
    x = torch.ones(64, device="cuda")
    w = torch.ones(64, device="cuda", requires_grad=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = x * 2
    with noclobber.watch() as seen:
        graph.replay()
        loss = (w * batch).sum()
        x.fill_(5)
        graph.replay()
        loss.backward()
    assert [one.code for one in seen.findings] == ["NC202"]
