"""The options of a run without values: `--fake`, and what is played."""

from __future__ import annotations

import argparse

from noclobber.cli.parser import whole
from noclobber.model.fake import STEPS, FakeOrder, gpu_of, shapes_of


def add_fake(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("a run without values")
    how.add_argument(
        "--fake", action="store_true",
        help="run with tensors that have shapes, dtypes and devices but no values: a step of any size in seconds, on "
        "this machine. No bytes are compared",
    )  # fmt: skip
    how.add_argument(
        "--steps", type=whole, metavar="N", help=f"with --fake: stop after N optimizer steps ({STEPS} by default)"
    )
    how.add_argument(
        "--device", metavar="DEVICE", help="with --fake: what to play, such as cuda:8xH100; cuda by default"
    )
    how.add_argument(
        "--shapes", metavar="SHAPES",
        help="with --fake: what each batch of a data loader is, where there is no data, such as "
        "input_ids=8x4096:int64,labels=8x4096:int64 or 8x3x224x224,8:int64; get_batch()=8x1024:int64 for what a "
        "function of the program returns",
    )  # fmt: skip
    how.add_argument("--world-size", type=whole, metavar="N", help="with --fake: run as one rank of N")
    how.add_argument("--rank", type=int, metavar="N", help="with --world-size: which rank; 0 by default")


def order_of(options: argparse.Namespace) -> FakeOrder | None:
    """Return what a fake run is asked for; None without `--fake`."""
    if not options.fake:
        for name in ("steps", "device", "shapes", "world_size", "rank"):
            if getattr(options, name) is not None:
                options.parser.error(f"--{name.replace('_', '-')} needs --fake")
        return None
    options.parser.refuse_together(options, "fake", "every")
    world, rank = options.world_size or 0, options.rank or 0
    if not 0 <= rank < max(world, 1):
        options.parser.error(f"--rank {rank} is none of --world-size {world}")
    try:
        gpu = gpu_of(options.device or "cuda", world)
        giver, batch = shapes_of(options.shapes) if options.shapes is not None else ("", None)
    except ValueError as reason:
        options.parser.error(str(reason))
    return FakeOrder(options.steps or STEPS, gpu, world, rank, batch, giver, is_program=True)
