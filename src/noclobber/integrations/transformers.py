"""A callback for the Trainer of Hugging Face's transformers: watches the first steps of a training and then some.

Use as `Trainer(..., callbacks=[NoclobberCallback()])`.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from transformers.trainer import Trainer
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments
from transformers.utils import logging

from noclobber.integrations.training import METRIC, Watching
from noclobber.observe.torch_api.frames import outward, passed_over

_log = logging.get_logger("transformers.trainer")
_EPOCH = "_run_epoch"
"""The method of a Trainer that runs all that a step does, since transformers 5."""
_STEP = "training_step"
"""The public method of a Trainer that runs forward and backward of a micro-batch."""
_ONLY_STEPS = (
    f"noclobber: this Trainer has no `{_EPOCH}`. An error that leaves `{_STEP}` is explained and ends the step. "
    "After an error elsewhere, such as in the optimizer, the step ends when the callback begins its next one."
)


class NoclobberCallback(Watching, TrainerCallback):
    """Watch the first three steps, and then one of `every`. A step has all micro-batches that gradients add up over.

    A silent error is a ClobberWarning at the end of the first step that has it, and the logs get `noclobber/findings`:
    how many findings there are. What was found is logged when the training ends, also with an error, and is in `report`
    and `findings`. An in-place error of a watched step is explained.

    `contents=True` compares the bytes that backward reads with the saved bytes, and not only their versions.
    """

    _trainer: Trainer | None = None
    """Whose epoch runs."""

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Follow the epoch, because no event tells that it has failed, and none brings the trainer."""
        trainer = _trainer_above(sys._getframe())
        if trainer is None:
            return
        self._trainer = trainer
        if hasattr(trainer, _EPOCH):
            self._follow(trainer, _EPOCH)
        else:
            _log.warning_once(_ONLY_STEPS)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._trainer = None

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._end(control)
        self._follow_part()
        self._training.begin()

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Follow the next micro-batch of a step."""
        self._follow_part()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._end(control)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._trainer = None
        self._training.end()
        self._training.log(_log.log, args.process_index)

    def _end(self, control: TrainerControl) -> None:
        """End the open step, and put it into the logs of the training if it has found something new."""
        found = self._training.end()
        if found and self._trainer is not None:
            due = control.should_log
            self._trainer.log({METRIC: found})
            control.should_log = due  # logging takes it back, and the trainer's own log of this step is still to come

    def _follow_part(self) -> None:
        """Follow a micro-batch, if the epoch cannot be followed."""
        if self._trainer is not None and not hasattr(self._trainer, _EPOCH):
            self._follow(self._trainer, _STEP)

    def _follow(self, trainer: Trainer, name: str) -> None:
        """Follow the next call of a method; end the step and log the report if the call leaves with an error.

        What replaces the method puts it back when it is called, so nothing of noclobber's stays on the trainer.
        """
        run, before = getattr(trainer, name), vars(trainer).get(name)

        @passed_over
        def followed(*args: Any, **named: Any) -> Any:
            if before is None:
                vars(trainer).pop(name, None)
            else:
                vars(trainer)[name] = before
            try:
                return run(*args, **named)
            except BaseException as error:
                self._trainer = None
                self._training.end(error)
                self._training.log(_log.log, trainer.args.process_index)
                raise

        vars(trainer)[name] = followed


def _trainer_above(innermost: FrameType) -> Trainer | None:
    """Return the trainer that calls, None if there is none. Reads the locals of methods only: reading keeps them."""
    for frame in outward(innermost):
        if frame.f_code.co_varnames[:1] == ("self",) and isinstance(one := frame.f_locals.get("self"), Trainer):
            return one
    return None
