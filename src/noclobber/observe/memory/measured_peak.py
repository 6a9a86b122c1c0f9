"""The most memory that a program holds at once, by what the allocators of PyTorch report to its profiler."""

from __future__ import annotations

from typing import Any

from torch.profiler import ProfilerActivity, profile


class MeasuredPeak:
    """Measures from `begin` to `end`, the memory of all devices together. The program itself may not use a profiler."""

    def begin(self) -> None:
        """Start the profiler. Raises RuntimeError where another one runs."""
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.start()

    def end(self) -> int:
        """Stop, and return the most bytes that were held at once of what was allocated since `begin`."""
        self._profile.stop()
        profiler: Any = self._profile.profiler
        events = profiler.kineto_results.events()
        changes = sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]")
        now = most = 0
        for _, size in changes:
            now += size
            most = max(most, now)
        return most
