"""A callback for Lightning: watches the first steps of a training and then some of them.

Use as `Trainer(callbacks=[NoclobberCallback()])`.
"""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from noclobber.blocks import watch
from noclobber.model.finding import Finding
from noclobber.model.report import Report
from noclobber.render import render

METRIC = "noclobber/findings"
"""The metric that the trainer's loggers get when a step has found something new: how many findings there are."""
_log = logging.getLogger("lightning.pytorch")


class NoclobberCallback(Callback):
    """Watch the first three training steps, and then one of `every`.

    A silent error is a ClobberWarning at the end of the first step that has it. What was found is logged when the
    training ends, and is in `report` and `findings`. An in-place error of a watched step is explained.

    `contents=True` compares the bytes that backward reads with the saved bytes, and not only their versions.
    """

    def __init__(self, *, every: int = 100, contents: bool = True) -> None:
        self._seen = watch(contents=contents, every=every)
        self._inside = False
        self._told = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What all watched steps have found."""
        return self._seen.findings

    @property
    def report(self) -> Report:
        """The findings, with what was watched and which steps were not."""
        return self._seen.report

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin a step."""
        self._seen.__enter__()
        self._inside = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End a step, and tell the loggers if there is something new."""
        self._inside = False
        self._seen.__exit__(None, None, None)
        if (found := len(self.findings)) > self._told:
            self._told = found
            for logger in trainer.loggers:
                logger.log_metrics({METRIC: found}, step=trainer.global_step)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the step that has failed, and explain its error."""
        if self._inside:
            self._inside = False
            self._seen.__exit__(type(exception), exception, exception.__traceback__)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the report."""
        report = self.report
        _log.log(logging.WARNING if report.findings else logging.INFO, "%s", render(report, "full").rstrip())
