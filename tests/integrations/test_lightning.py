"""The callback for Lightning, in real trainings of tiny models."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import noclobber
from noclobber.integrations.lightning import METRIC, NoclobberCallback
from noclobber.observe import subscription


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
            max_epochs=1,
            accelerator="cpu",
            callbacks=[callback] if callback is not None else [],
            logger=logger,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
            **more,
        ).fit(net, data)
    assert not subscription.is_armed()
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
    assert all(map(torch.equal, watched, bare))
    assert callback.findings == ()
    assert callback.report.coverage.unseen == ("13 of 20 steps (`every=5` watches the others)",)


def test_a_silent_error_is_told_once_logged_and_reported(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    callback, logger = NoclobberCallback(every=5), CSVLogger(tmp_path)
    logging.getLogger("lightning.pytorch").addHandler(caplog.handler)
    try:
        with pytest.warns(noclobber.ClobberWarning, match="NC201") as told:
            trained(Net("silent"), callback, logger)
    finally:
        logging.getLogger("lightning.pytorch").removeHandler(caplog.handler)
    assert sum(one.category is noclobber.ClobberWarning for one in told) == 1
    (finding,) = callback.findings
    assert finding.count == 5  # the third, fifth, tenth, fifteenth and twentieth step
    assert "error[NC201]: silent in-place write" in caplog.text
    assert METRIC in (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()


def test_an_error_is_explained() -> None:
    callback = NoclobberCallback()
    with pytest.raises(noclobber.ClobberError) as raised:
        trained(Net("raised"), callback)
    assert "error[NC101]" in "".join(raised.value.__notes__)
    assert [one.code for one in callback.findings] == ["NC101"]
