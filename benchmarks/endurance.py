"""Whether memory and time of a step stay flat: a small model trains under `watch` for up to a million steps."""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import torch
from workloads import WORKLOADS

import noclobber
from noclobber.observe.native import bridge


def memory() -> float:
    """The memory of the process that is in RAM, in MB; its peak where the system does not say more."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    """Train, and print a row every so often: the steps so far, the CPU time of a step since the last row, memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--steps", type=int, default=1_000_000, help="stop here at the latest")
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--no-contents", dest="contents", action="store_false")
    options = parser.parse_args()

    torch.set_num_threads(1)
    step = WORKLOADS[0].build()
    end, steps = time.monotonic() + 60 * options.minutes, 0
    with noclobber.watch(contents=options.contents):
        print(f"{WORKLOADS[0].says}; native part: {bridge.why_not() or 'on'}")
        print("|    steps | ms a step | MB |\n|---:|---:|---:|")
        for row in range(1, options.rows + 1):
            until = end - 60 * options.minutes * (1 - row / options.rows)
            begin, before = time.process_time(), steps
            while time.monotonic() < until and steps < options.steps:
                for _ in range(100):
                    step()
                steps += 100
            if steps > before:
                spent = 1000 * (time.process_time() - begin) / (steps - before)
                print(f"| {steps:8} | {spent:.3f} | {memory():.1f} |", flush=True)


if __name__ == "__main__":
    main()
