"""The callback for Lightning, in real trainings of tiny models."""

from __future__ import annotations

import copy
import pickle
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import noclobber
from noclobber.integrations.lightning import NoclobberCallback
from noclobber.integrations.training import METRIC
from noclobber.observe.arming import recorder
from tests.integrations.logs import heard
from tests.tensors import all_equal


class Net(LightningModule):
    """A regression; `wrong` overwrites what backward reads, in the third step and later."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 1)
        self.wrong = wrong

    def hidden(self, x: torch.Tensor, number: int) -> torch.Tensor:
        h = self.first(x).sigmoid()
        if self.wrong == "silent" and number >= 2:
            h.data.mul_(0.5)
        if self.wrong == "raised" and number >= 2:
            h.mul_(0.5)
        if self.wrong == "stopped" and number >= 2:
            h.data.mul_(0.5)
            raise KeyboardInterrupt
        return h

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.last(self.hidden(batch[0], number)), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Checkpointed(Net):
    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        h = checkpoint(self.hidden, batch[0], number, use_reentrant=False)
        return nn.functional.mse_loss(self.last(h), batch[1])


class TwoOptimizers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[torch.Tensor], number: int) -> None:  # type: ignore[override]
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, number))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(one.parameters(), lr=0.01) for one in (self.first, self.last)]


class Skipping(Net):
    def on_train_batch_start(self, batch: Any, number: int) -> int | None:
        return -1 if number == 2 else None


def trained(
    net: LightningModule, callback: NoclobberCallback | None, logger: Logger | bool = False, **more: Any
) -> Any:
    """The weights after 20 steps."""
    torch.manual_seed(0)
    for one in net.modules():
        if isinstance(one, nn.Linear):
            one.reset_parameters()
    data = DataLoader(TensorDataset(torch.randn(80, 3), torch.randn(80, 1)), batch_size=4)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", "The 'train_dataloader'|You are using|`isinstance")
        Trainer(
            accelerator="cpu",
            callbacks=[callback] if callback is not None else [],
            logger=logger,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
            **{"max_epochs": 1, **more},
        ).fit(net, data)
    assert not recorder.is_armed()
    return [one.detach().clone() for one in net.parameters()]


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (Net, {}),
        (Net, {"accumulate_grad_batches": 4}),
        (Net, {"precision": "bf16-mixed", "gradient_clip_val": 0.5}),
        (Checkpointed, {}),
        (TwoOptimizers, {}),
    ],
)
def test_a_right_training_is_quiet_and_the_same(kind: type[Net], more: dict[str, Any]) -> None:
    callback = NoclobberCallback(every=5)
    watched, bare = trained(kind(), callback, **more), trained(kind(), None, **more)
    assert all_equal(watched, bare)
    assert callback.findings == ()
    assert callback.report.coverage.unseen == ("14 of 20 steps (`every=5` watches the others)",)


def test_a_silent_error_is_told_once_logged_and_reported(tmp_path: Any) -> None:
    callback, logger = NoclobberCallback(every=5), CSVLogger(tmp_path)
    with heard("lightning.pytorch") as said, pytest.warns(noclobber.ClobberWarning, match="NC201") as told:
        trained(Net("silent"), callback, logger)
    assert sum(one.category is noclobber.ClobberWarning for one in told) == 1
    (finding,) = callback.findings
    assert finding.count == 4  # the third step, and one each of the steps 4 to 8, 9 to 13, 14 to 18
    assert sum("error[NC201]: silent in-place write" in text for text in said) == 1
    assert METRIC in (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()


def test_an_error_is_explained() -> None:
    callback = NoclobberCallback()
    with pytest.raises(noclobber.ClobberError) as raised:
        trained(Net("raised"), callback)
    assert "error[NC101]" in "".join(raised.value.__notes__)
    assert [one.code for one in callback.findings] == ["NC101"]


def test_a_model_that_skips_epochs_leaves_no_step_open() -> None:
    callback = NoclobberCallback(every=5)
    trained(Skipping(), callback, max_epochs=4)  # which also sees that nothing is armed
    assert callback.report.coverage.unseen == ("7 of 12 steps (`every=5` watches the others)",)


@pytest.mark.parametrize("wrong", ["raised", "stopped"])
def test_the_report_is_logged_once_if_the_training_ends_with_an_error(wrong: str) -> None:
    interrupts = signal.getsignal(signal.SIGINT)
    try:
        with heard("lightning.pytorch") as said, pytest.raises((noclobber.ClobberError, SystemExit)):
            trained(Net(wrong), NoclobberCallback())
    finally:
        signal.signal(signal.SIGINT, interrupts)  # which Lightning turns off
    assert sum("noclobber: " in text for text in said) == 1
    assert not recorder.is_armed()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_begins_empty_with_the_same_settings(copied: Any) -> None:
    callback = NoclobberCallback(every=7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained(Net("silent"), callback)
        another = copied(callback)
        assert (len(callback.findings), another.findings) == (1, ())
        trained(Net("silent"), another)
    assert len(another.findings) == 1
    assert another.report.coverage == callback.report.coverage


RANKS = """
import warnings
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from noclobber.integrations.lightning import NoclobberCallback

warnings.simplefilter("ignore")

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
    def training_step(self, batch, number):
        h = self.layer(batch[0]).exp()
        if self.global_rank in WRONG:
            h.data.mul_(0.5)
        return h.sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

Trainer(
    max_epochs=1, accelerator="cpu", strategy="ddp_fork", devices=2, callbacks=[NoclobberCallback()], logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
).fit(Net(), DataLoader(TensorDataset(torch.randn(8, 3)), batch_size=2))
"""


@pytest.mark.parametrize(("wrong", "reports"), [("()", 0), ("(1,)", 1)])
def test_only_the_first_rank_and_those_with_findings_log_a_report(wrong: str, reports: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS.replace("WRONG", wrong))
    said = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, check=True).stderr
    assert said.count("noclobber: nothing found") == 1
    assert said.count("noclobber on rank 1:\nerror[NC201]") == said.count("error[NC201]") == reports


def test_every_step_is_watched_and_counted() -> None:
    callback = NoclobberCallback(every=1)
    with pytest.warns(noclobber.ClobberWarning, match="NC201") as told:
        trained(Net("silent"), callback)
    assert len([one for one in told if one.category is noclobber.ClobberWarning]) == 1
    assert [(one.code, one.count) for one in callback.findings] == [("NC201", 18)]
    assert callback.report.coverage.unseen == ()
