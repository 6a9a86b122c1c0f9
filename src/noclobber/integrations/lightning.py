"""A callback for Lightning: watches the first steps of a training and then some of them.

Use as `Trainer(callbacks=[NoclobberCallback()])`.
"""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from noclobber.integrations.training import METRIC, Watching

_log = logging.getLogger("lightning.pytorch")


class NoclobberCallback(Watching, Callback):
    """Watch the first three training steps, and then one of `every`. A step is a batch.

    A silent error is a ClobberWarning at the end of the first step that has it. What was found is logged when the
    training ends, also with an error, and is in `report` and `findings`. An in-place error of a watched step is
    explained.

    `contents=True` compares the bytes that backward reads with the saved bytes, and not only their versions.
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin a step. A model that skips the rest of the epoch leaves one open."""
        self._end(trainer)
        self._training.begin()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._end(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End a step whose model has skipped the rest of the epoch."""
        self._end(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End a step whose model has skipped the rest of the training."""
        self._end(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the step that has failed, explain its error, and log the report."""
        if trainer.state.fn == TrainerFn.FITTING:
            self._training.end(exception)
            self._training.log(_log.log, trainer.global_rank)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._training.log(_log.log, trainer.global_rank)

    def _end(self, trainer: Trainer) -> None:
        """End the open step, and tell the loggers if it has found something new."""
        if found := self._training.end():
            for logger in trainer.loggers:
                logger.log_metrics({METRIC: found}, step=trainer.global_step)
