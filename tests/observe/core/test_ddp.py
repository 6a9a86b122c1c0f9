"""Two gloo processes, each watched: what DistributedDataParallel and collectives write is seen on the rank it hits."""

import inspect
import json
import os
import sys

import pytest
import torch
import torch.distributed as dist

from tests import served
from tests.observe import ranks

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="PyTorch without gloo")
WATCHED = ("watch",)
STEPS = [name for name in ranks.PROGRAMS if name.startswith(("step", "accumulated"))]
TWO_FORWARDS = ["same_bytes", "batch_norm"]
RIGHT = [*STEPS, "no_broadcast", *TWO_FORWARDS]
SILENT = ["all_reduce", "all_reduce_in_the_background", "scatter", "functional_all_reduce", "all_reduce_in_graph"]
COUNTED = ["all_gather", "all_gather_into_tensor"]
BUFFERS_COUNT = torch.__version__ < "2.12"
"""Whether the versions of buffers move as DistributedDataParallel copies them; from 2.12 on it puts them back."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What both ranks found, by rank: one pair of processes runs every program of ranks.py."""
    folder = tmp_path_factory.mktemp("ranks")
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    if sys.platform == "linux":
        surroundings["GLOO_SOCKET_IFNAME"] = "lo"
    outs = [folder / f"{rank}.json" for rank in (0, 1)]
    served.run_together(
        [[ranks.__file__, str(rank), str(folder / "store"), str(outs[rank])] for rank in (0, 1)], folder, surroundings
    )
    return [json.loads(out.read_text()) for out in outs]


def marked(function, mark):
    lines, start = inspect.getsourcelines(function)
    return next(start + number for number, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))


def codes(result):
    return [code for code, _ in result["findings"]]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_bit_identical_and_without_finding(results, name):
    if BUFFERS_COUNT and name in TWO_FORWARDS:
        assert results[1][name]["bare"]["error"] is not None, "PyTorch refuses what would be right"
        for rank in results:
            bare = rank[name]["bare"]
            for how in WATCHED:
                assert {one: rank[name][how][one] for one in bare} == bare
                assert codes(rank[name][how]) == ["NC105"] * (bare["error"] is not None)
        return
    for rank in results:
        bare = rank[name]["bare"]
        assert bare["error"] is None
        for how in (*WATCHED, "raise"):
            assert rank[name][how]["values"] == bare["values"]
            assert (rank[name][how]["error"], rank[name][how]["findings"]) == (None, [])
            assert rank[name][how]["unseen"] == []


@pytest.mark.parametrize("name", STEPS)
def test_no_save_is_left_after_backward_while_the_loss_lives(results, name):
    assert [rank[name][how]["left"] for rank in results for how in WATCHED] == [0, 0]


@pytest.mark.parametrize(("name", "gradient"), [("one_buffer", 50.0), ("two_buffers", 100.0)])
def test_a_buffer_that_the_second_forward_overwrites_is_blamed_on_that_forward(results, name, gradient):
    zero, one = (rank[name] for rank in results)
    if BUFFERS_COUNT:
        assert "modified by an inplace operation" in one["bare"]["error"]
    else:
        assert one["bare"] == {"values": [[gradient] * 3], "error": None}, "PyTorch is silent, and rank 1 is wrong"
    assert zero["bare"]["values"] == [[gradient / 50.0] * 3]
    for how in WATCHED:
        assert (one[how]["values"], one[how]["error"]) == (one["bare"]["values"], one["bare"]["error"])
        assert (zero[how]["findings"], set(codes(one[how]))) == ([], {"NC105"})
        for _, lines in one[how]["findings"]:
            assert lines["save"] == marked(ranks.Scaled.forward, "saved")
            assert lines["write"] == marked(ranks.two_forwards, "written")
        assert any("copies the buffers of rank 0" in note for note in one[how]["notes"]) != BUFFERS_COUNT
        assert not any("times" in note for note in one[how]["notes"]), "one forward, one broadcast"


@pytest.mark.parametrize("name", [*SILENT, "broadcast", "receive"])
def test_a_collective_that_counts_no_version_is_blamed_on_its_line(results, name):
    write = getattr(ranks, name.removesuffix("_in_graph"))
    hit = results[1:] if name in ("broadcast", "receive") else results
    for rank in hit:
        assert rank[name]["bare"]["error"] is None
        for how in WATCHED:
            assert codes(rank[name][how]) == ["NC203"]
            assert rank[name][how]["findings"][0][1]["save"] == marked(ranks.collective, "saved")
            assert rank[name][how]["findings"][0][1]["write"] == marked(write, "written")
            assert rank[name][how]["values"] == rank[name]["bare"]["values"]
    if len(hit) == 1:
        assert [results[0][name][how]["findings"] for how in (*WATCHED, "raise")] == [[], []]


@pytest.mark.parametrize("name", COUNTED)
def test_a_collective_that_pytorch_counts_raises_with_the_same_words(results, name):
    for rank in results:
        for how in WATCHED:
            assert rank[name]["bare"]["error"].startswith(rank[name][how]["error"])
            assert codes(rank[name][how]) == ["NC101"]
            assert rank[name][how]["findings"][0][1]["write"] == marked(getattr(ranks, name), "written")


@pytest.mark.parametrize("name", ["one_buffer", "two_buffers", *SILENT])
def test_a_collective_is_not_stopped_as_the_other_rank_would_wait_but_raises_when_it_is_read(results, name):
    zero, raised = results[0][name], results[1][name]["raise"]
    if BUFFERS_COUNT and name not in SILENT:
        # The copies follow the collective, and can be stopped.
        assert zero["raise"]["values"] == zero["bare"]["values"]
        assert raised["error"].startswith("an in-place write was stopped")
        assert [lines["write"] for _, lines in raised["findings"]] == [marked(ranks.two_forwards, "written")]
        return
    assert raised["error"].startswith("a tensor that backward needs holds other bytes")
    assert ["read" in lines for _, lines in raised["findings"]] == [True]


@pytest.mark.parametrize("name", ["stale_save", "communication_hook"])
def test_a_stale_save_beside_the_reducer_is_what_it_is_everywhere(results, name):
    program = getattr(ranks, name)
    for rank in results:
        for how in WATCHED:
            assert rank[name]["bare"]["error"].startswith(rank[name][how]["error"])
            (found,) = rank[name][how]["findings"]
            assert found[0] == "NC101"
            assert found[1]["save"] == marked(program, "saved")
            assert found[1]["write"] == marked(program, "written")
