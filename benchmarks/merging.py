"""How long one report of many processes takes, and how much memory: `python benchmarks/merging.py [FILES FINDINGS]`.

The files are made up: each has the same findings of a rank, and one that only this rank has. Needs no torch.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time

from noclobber.model.reports.finding import Finding, Label, Role, Suggestion
from noclobber.model.reports.report import Coverage, coverage_out
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Read, Save, Tensor, Write
from noclobber.model.source import Span
from noclobber.processes.journal import FORMAT, Journal
from noclobber.processes.merging import report_of

TEXTS: list[tuple[Role, str]] = [("save", "is saved here"), ("write", "overwrites it"), ("read", "reads it")]


def finding(line: int, message: str = "in-place write to a tensor that backward still needs") -> Finding:
    """A finding of common size."""
    labels = tuple(
        Label(role, Span("/home/user/project/train.py", line + at, 5, line + at, 40), text, at == 1, ("    h += x\n",))
        for at, (role, text) in enumerate(TEXTS)
    )
    tensor = Tensor((64, 16))
    event = Clobber(
        Save("SigmoidBackward0", "result", tensor, 0),
        (Write("aten::add_", None, 1),),
        Read("SigmoidBackward0", None),
        1,
    )
    notes = ("d sigmoid(x)/dx = y (1 - y), so autograd keeps y; the input of sigmoid is not kept",)
    aside = Suggestion("write out of place")
    return Finding(
        "NC101", "stale-save", "error", message, labels, event, fields=("result",), notes=notes, suggestions=(aside,)
    )


def write(folder: str, files: int, findings: int) -> None:
    """Write the files of so many ranks."""
    covered = coverage_out(Coverage(contents=True))
    common = [finding(10 * number + 1) for number in range(findings - 1)]
    for rank in range(files):
        journal = Journal(folder, f"node{rank // 8}-{rank}-{rank:x}")
        journal.write(format=FORMAT, id=f"{rank}", run="1", parent=None, how="started", pid=rank + 1, born="", above=[],
                      host=f"node{rank // 8}", command=["python", "train.py"], python="3.11.7",
                      date="2026-01-01T00:00:00+00:00")  # fmt: skip
        journal.write(torch="2.13.0", coverage=covered)
        journal.write(who={"rank": rank, "world": files})
        for one in common:
            journal.found(one, 1)
        journal.found(finding(100_000 + 10 * rank), 1)
        journal.write(end=0, coverage=covered, crashes=[])


def main() -> None:
    """Make the files, merge them, and print the figures."""
    files, findings = map(int, sys.argv[1:3] or (4096, 50))
    with tempfile.TemporaryDirectory() as folder:
        write(folder, files, findings)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        report = report_of(folder)
        seconds = time.perf_counter() - start
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert len(report.findings) == findings - 1 + files
    print(f"{files} files of {findings} findings: {seconds:.1f} s, {more:.0f} MiB, {len(report.findings)} findings")


if __name__ == "__main__":
    main()
