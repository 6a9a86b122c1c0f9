"""The callback for the Trainer of transformers, in real trainings of tiny models."""

from __future__ import annotations

import copy
import logging
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.utils.logging
from torch import nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import noclobber
import noclobber.integrations.transformers as integration
from noclobber.integrations.training import METRIC
from noclobber.integrations.transformers import NoclobberCallback
from noclobber.observe.arming import recorder
from tests.integrations.logs import heard
from tests.tensors import all_equal


class Words(Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self.tokens = torch.randint(0, 30, (40, 8), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[number], "labels": self.tokens[number]}


class Regression(nn.Module):
    """`wrong` overwrites what backward reads, in the third step and later."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)
        self.wrong, self.calls = wrong, 0

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        h = self.first(input_ids / 30).sigmoid()
        if self.wrong == "silent" and self.calls > 2:
            h.data.mul_(0.5)
        if self.wrong == "raised" and self.calls > 2:
            h.mul_(0.5)
        if self.wrong == "stopped" and self.calls > 2:
            h.data.mul_(0.5)
            raise KeyboardInterrupt
        return {"loss": self.last(h).square().mean()}


def gpt() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=30, n_positions=8, n_embd=8, n_layer=2, n_head=2))


def trainer(net: nn.Module, folder: Path, *callbacks: TrainerCallback, **more: Any) -> Trainer:
    arguments = TrainingArguments(
        str(folder),
        num_train_epochs=1,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=3,
        **more,
    )
    return Trainer(net, arguments, train_dataset=Words(), callbacks=[*callbacks])


def trained(net: nn.Module, folder: Path, callback: NoclobberCallback | None, **more: Any) -> list[torch.Tensor]:
    """The weights after 20 batches."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch|transformers|accelerate")
        trainer(net, folder, *([callback] if callback is not None else []), **more).train()
    return [one.detach().clone() for one in net.parameters()]


@pytest.mark.parametrize(
    ("more", "missed", "steps"),
    [
        ({}, 14, 20),
        ({"gradient_accumulation_steps": 4}, 2, 5),
        ({"bf16": True, "gradient_checkpointing": True}, 14, 20),
    ],
)
def test_a_right_training_is_quiet_and_the_same(tmp_path: Path, more: dict[str, Any], missed: int, steps: int) -> None:
    callback = NoclobberCallback(every=5)
    watched, bare = trained(gpt(), tmp_path, callback, **more), trained(gpt(), tmp_path, None, **more)
    assert all_equal(watched, bare)
    assert callback.findings == ()
    assert callback.report.coverage.unseen == (f"{missed} of {steps} steps (`every=5` watches the others)",)
    assert not recorder.is_armed()


def test_a_silent_error_is_told_once_and_reported(tmp_path: Path) -> None:
    callback = NoclobberCallback(every=5)
    with heard("transformers") as said, pytest.warns(noclobber.ClobberWarning, match="NC201") as told:
        trained(Regression("silent"), tmp_path, callback)
    (where,) = (one.filename for one in told if one.category is noclobber.ClobberWarning)
    assert where == __file__
    (finding,) = callback.findings
    assert finding.count == 4  # the third step, and one each of the steps 4 to 8, 9 to 13, 14 to 18
    assert sum("error[NC201]: silent in-place write" in text for text in said) == 1


def test_the_number_of_findings_is_logged_when_it_changes_and_the_trainer_logs_as_before(tmp_path: Path) -> None:
    told = []

    class Reading(TrainerCallback):
        def on_log(self, *given: Any, logs: dict[str, float], **more: Any) -> None:
            told.append(logs)

    histories = []
    for callbacks in ([Reading()], [NoclobberCallback(), Reading()]):
        training = trainer(Regression("silent"), tmp_path, *callbacks, logging_steps=3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            training.train()
        histories.append(training.state.log_history)
    bare, watched = histories
    (news,) = (one for one in watched if METRIC in one)
    assert (news[METRIC], news["step"]) == (1, 3)
    assert any(METRIC in one for one in told)
    assert [one["step"] for one in watched if one is not news] == [one["step"] for one in bare]
    assert [one.get("loss") for one in watched if one is not news] == [one.get("loss") for one in bare]


def test_an_error_is_explained_and_the_next_training_is_as_usual(tmp_path: Path) -> None:
    callback = NoclobberCallback()
    with pytest.raises(noclobber.ClobberError) as raised:
        trained(Regression("raised"), tmp_path, callback)
    assert "error[NC101]" in "".join(raised.value.__notes__)
    trained(Regression(""), tmp_path, callback)
    assert [one.code for one in callback.findings] == ["NC101"]
    assert not recorder.is_armed()


class Stopping(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        raise KeyboardInterrupt


def seen_on(one: Trainer) -> set[str]:
    """The names of a trainer's methods that stand on the trainer itself."""
    return {name for name in vars(one) if callable(getattr(type(one), name, None))}


@pytest.mark.parametrize("wrong", ["raised", "stopped", "optimizer"])
def test_an_error_of_a_step_ends_it_and_the_report_is_logged(wrong: str, tmp_path: Path) -> None:
    one, another = NoclobberCallback(), NoclobberCallback()
    training = trainer(Regression(wrong), tmp_path, one, another)
    before = seen_on(training)
    if wrong == "optimizer":
        training.optimizer = Stopping(training.model.parameters(), lr=0.1)
    logging.getLogger("transformers.trainer").setLevel(logging.INFO)
    try:
        with heard("transformers") as said, pytest.raises((noclobber.ClobberError, KeyboardInterrupt)) as raised:
            training.train()
    finally:
        logging.getLogger("transformers.trainer").setLevel(logging.NOTSET)
    assert not recorder.is_armed()
    assert seen_on(training) == before
    assert sum("noclobber: " in text for text in said) == 2  # one for each callback
    assert ("error[NC101]" in "".join(getattr(raised.value, "__notes__", ()))) is (wrong == "raised")


def test_nothing_is_on_the_trainer_while_it_trains_and_afterwards(tmp_path: Path) -> None:
    here = []

    class Looking(TrainerCallback):
        def on_step_end(self, *given: Any, **more: Any) -> None:
            here.append(seen_on(training))

    training = trainer(Regression(""), tmp_path, NoclobberCallback(), NoclobberCallback(), Looking())
    before = seen_on(training)
    training.train()
    assert here == [before] * 20
    assert seen_on(training) == before


@pytest.mark.parametrize(("wrong", "more"), [("raised", {}), ("raised", {"gradient_accumulation_steps": 2}), ("", {})])
def test_a_trainer_without_a_method_for_the_epoch_has_its_steps_followed(
    wrong: str, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integration, "_EPOCH", "not_in_transformers_4")
    transformers.utils.logging.warning_once.cache_clear()
    one, another = NoclobberCallback(), NoclobberCallback()
    training = trainer(Regression(wrong), tmp_path, one, another, **more)
    before = seen_on(training)
    with heard("transformers") as said:
        if wrong:
            with pytest.raises(noclobber.ClobberError) as raised:
                training.train()
            assert "error[NC101]" in "".join(raised.value.__notes__)
        else:
            training.train()
    assert not recorder.is_armed()
    assert seen_on(training) == before
    assert [len(callback.findings) for callback in (one, another)] == ([1, 1] if wrong else [0, 0])
    assert sum("error[NC101]" in text for text in said) == (2 if wrong else 0)
    assert sum("noclobber: this Trainer has no `_run_epoch`." in text for text in said) == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_begins_empty_with_the_same_settings(copied: Any, tmp_path: Path) -> None:
    callback = NoclobberCallback(every=7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained(Regression("silent"), tmp_path, callback)
        another = copied(callback)
        assert (len(callback.findings), another.findings) == (1, ())
        trained(Regression("silent"), tmp_path, another)
    assert another.report.coverage == callback.report.coverage
