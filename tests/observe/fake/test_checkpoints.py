"""Checkpoints of a fake run: what is saved can be loaded, and no file of the program changes."""

import io
import os
import shutil

import pytest
import safetensors.torch
import torch
from torch import nn

import noclobber


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with noclobber.fake() as block:
        yield block


def saved(file):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, 4, device="cuda")).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, file)
    return model, optimizer


def test_what_is_saved_can_be_loaded(run):
    for file in ("model.pt", io.BytesIO()):
        model, optimizer = saved(file)
        if file != "model.pt":
            file.seek(0)
        loaded = torch.load(file, weights_only=True)
        assert loaded["epoch"] == 3
        assert loaded["model"]["0.weight"].device.type == "cuda"
        assert loaded["model"]["1.num_batches_tracked"].item() == 1
        assert loaded["model"]["0.weight"] is not model[0].weight
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
    assert torch.load("model.pt", map_location="cpu")["model"]["0.weight"].device.type == "cpu"
    assert not [note for note in run.notes if "values were asked" in note]


def test_a_whole_module_can_be_loaded(run):
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    torch.save(module, "module.pt")
    loaded = torch.load("module.pt", weights_only=False)
    assert loaded[0].weight is loaded[1].weight
    assert isinstance(loaded[0].bias, nn.Parameter)
    torch.save(torch.zeros(3, device="meta").untyped_storage(), "storage.pt")
    assert len(torch.load("storage.pt", weights_only=False)) == 12
    with pytest.raises(AttributeError):  # as without noclobber
        torch.save(lambda: None, "function.pt")


def test_safetensors_can_be_loaded(run):
    tensors = {"a": torch.randn(3, 4, dtype=torch.bfloat16), "b": torch.arange(3)}
    safetensors.torch.save_file(tensors, "model.safetensors", metadata={"format": "pt"})
    loaded = safetensors.torch.load_file("model.safetensors", device="cuda")
    assert loaded["a"].device.type == "cuda"
    assert loaded["b"].tolist() == [0, 1, 2]
    with safetensors.safe_open("model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert sorted(file.keys()) == ["a", "b"]
        assert file.get_slice("a")[1:].shape == (2, 4)
        assert (file.get_slice("a").get_dtype(), file.get_slice("a").get_shape()) == ("BF16", [3, 4])


def put(name, source, target):
    getattr(os if name in ("replace", "rename") else shutil, name)(source, target)


@pytest.mark.parametrize("name", ["replace", "rename", "move", "copyfile", "copy", "copy2"])
def test_no_file_of_the_program_is_changed(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best.pt").write_bytes(b"weights of a month")
    (tmp_path / "last.pt").write_bytes(b"weights of a day")
    (tmp_path / "notes.txt").write_text("notes")
    with noclobber.fake():
        saved("last.pt")
        put(name, "last.pt", "best.pt")
        assert torch.load("best.pt")["epoch"] == 3
        saved("new.pt")
        put(name, "new.pt", "newest.pt")
        assert torch.load("newest.pt")["epoch"] == 3
        put(name, "notes.txt", "other.txt")
    assert (tmp_path / "best.pt").read_bytes() == b"weights of a month"
    assert (tmp_path / "last.pt").read_bytes() == b"weights of a day"
    assert (tmp_path / "other.txt").read_text() == "notes"
    assert sorted(one.name for one in tmp_path.iterdir() if one.suffix == ".pt") == ["best.pt", "last.pt"]


@pytest.mark.parametrize("saves_again", [False, True])
@pytest.mark.parametrize("name", ["removed", "written", "replace", "rename", "move", "copyfile", "copy", "copy2"])
def test_a_file_of_the_program_in_the_place_of_one_that_was_saved_stays(tmp_path, monkeypatch, name, saves_again):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.txt").write_text("results")
    with noclobber.fake():
        saved("best.pt")
        if name == "removed":
            os.remove("best.pt")
        if name in ("removed", "written"):
            (tmp_path / "best.pt").write_text("results")
        else:
            put(name, "log.txt", "best.pt")
        if saves_again:
            saved("best.pt")
            assert (tmp_path / "best.pt").read_text() == "results"
            assert torch.load("best.pt")["epoch"] == 3
    assert (tmp_path / "best.pt").read_text() == "results"


def test_what_is_saved_where_a_file_was_removed_is_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best.pt").write_bytes(b"weights of a month")
    with noclobber.fake():
        torch.save({"epoch": 1}, "best.pt")
        os.remove("best.pt")
        torch.save({"epoch": 2}, "best.pt")
        assert torch.load("best.pt")["epoch"] == 2
    assert not (tmp_path / "best.pt").exists()


def test_a_file_that_cannot_be_written_is_an_error(run):
    with pytest.raises(FileNotFoundError):
        torch.save({}, "missing/model.pt")


def test_what_is_there_is_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": torch.ones(3, 4), "rows": [1, 2]}, "model.pt")
    with noclobber.fake():
        loaded = torch.load("model.pt", map_location="cuda")
        assert loaded["weight"].device.type == "cuda"
        assert loaded["rows"] == [1, 2]
