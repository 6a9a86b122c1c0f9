"""A callback for the Trainer of Hugging Face's transformers: watches the first steps of a training and then some.

Use as `Trainer(..., callbacks=[NoclobberCallback()])`.
"""

from __future__ import annotations

from logging import INFO, WARNING
from typing import Any

from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments
from transformers.utils import logging

from noclobber.blocks import watch
from noclobber.model.finding import Finding
from noclobber.model.report import Report
from noclobber.render import render

_log = logging.get_logger("transformers.trainer")


class NoclobberCallback(TrainerCallback):
    """Watch the first three steps, and then one of `every`. A step has all micro-batches that gradients add up over.

    A silent error is a ClobberWarning at the end of the first step that has it. What was found is logged when the
    training ends, and is in `report` and `findings`. An in-place error of a watched step is explained.

    `contents=True` compares the bytes that backward reads with the saved bytes, and not only their versions.
    """

    def __init__(self, *, every: int = 100, contents: bool = True) -> None:
        self._seen = watch(contents=contents, every=every)
        self._inside = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What all watched steps have found."""
        return self._seen.findings

    @property
    def report(self) -> Report:
        """The findings, with what was watched and which steps were not."""
        return self._seen.report

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """End a step of an earlier training: nobody is told that it has failed."""
        self._leave()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Begin a step."""
        self._leave()
        self._seen.__enter__()
        self._inside = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """End a step."""
        self._leave()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Log the report, where this process is the one that logs."""
        self._leave()
        report = self.report
        if state.is_local_process_zero:
            _log.log(WARNING if report.findings else INFO, "%s", render(report, "full").rstrip())

    def _leave(self) -> None:
        if self._inside:
            self._inside = False
            self._seen.__exit__(None, None, None)
