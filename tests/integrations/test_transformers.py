"""The callback for the Trainer of transformers, in real trainings of tiny models."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import noclobber
from noclobber.integrations.transformers import NoclobberCallback
from noclobber.observe import subscription


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
        return {"loss": self.last(h).square().mean()}


def gpt() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=30, n_positions=8, n_embd=8, n_layer=2, n_head=2))


def trained(net: nn.Module, folder: Path, callback: NoclobberCallback | None, **more: Any) -> list[torch.Tensor]:
    """The weights after 20 batches."""
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
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch|transformers|accelerate")
        callbacks = [callback] if callback is not None else []
        Trainer(net, arguments, train_dataset=Words(), callbacks=callbacks).train()
    return [one.detach().clone() for one in net.parameters()]


@pytest.mark.parametrize(
    ("more", "steps"),
    [
        ({}, 20),
        ({"gradient_accumulation_steps": 4}, 5),
        ({"bf16": True}, 20),
        ({"gradient_checkpointing": True}, 20),
    ],
)
def test_a_right_training_is_quiet_and_the_same(tmp_path: Path, more: dict[str, Any], steps: int) -> None:
    callback = NoclobberCallback(every=5)
    watched, bare = trained(gpt(), tmp_path, callback, **more), trained(gpt(), tmp_path, None, **more)
    assert all(map(torch.equal, watched, bare))
    assert callback.findings == ()
    missed = steps - len({1, 2, 3, *range(5, steps + 1, 5)})
    assert callback.report.coverage.unseen == (f"{missed} of {steps} steps (`every=5` watches the others)",)
    assert not subscription.is_armed()


def test_a_silent_error_is_told_once_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = NoclobberCallback(every=5)
    logging.getLogger("transformers").addHandler(caplog.handler)
    try:
        with pytest.warns(noclobber.ClobberWarning, match="NC201") as told:
            trained(Regression("silent"), tmp_path, callback)
    finally:
        logging.getLogger("transformers").removeHandler(caplog.handler)
    (where,) = (one.filename for one in told if one.category is noclobber.ClobberWarning)
    assert where == __file__
    (finding,) = callback.findings
    assert finding.count == 5  # the third, fifth, tenth, fifteenth and twentieth step
    assert "error[NC201]: silent in-place write" in caplog.text


def test_an_error_is_explained_and_the_next_training_is_as_usual(tmp_path: Path) -> None:
    callback = NoclobberCallback()
    with pytest.raises(noclobber.ClobberError) as raised:
        trained(Regression("raised"), tmp_path, callback)
    assert "error[NC101]" in "".join(raised.value.__notes__)
    trained(Regression(""), tmp_path, callback)
    assert [one.code for one in callback.findings] == ["NC101"]
    assert not subscription.is_armed()
