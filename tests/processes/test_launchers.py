"""Launchers that people use, the real packages: `accelerate launch` and Lightning's strategies of several processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..cli.running import noclobber, write

ACCELERATED = """
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 4)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    for _ in range(2):
        h = model(torch.randn(2, 4)).sigmoid()
        h.data.mul_(2)  # written
        accelerator.backward(h.sum())
        optimizer.step()
        optimizer.zero_grad()
    """
LIGHTNING = """
    import sys, torch, lightning
    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
        def training_step(self, batch, number):
            h = self.layer(batch[0]).sigmoid()
            if self.global_rank == 1:
                h.data.mul_(2)  # written
            return h.sum()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)
    if __name__ == "__main__":
        trainer = lightning.Trainer(
            accelerator="cpu", devices=2, strategy=sys.argv[1], max_epochs=1, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )
        data = torch.utils.data.TensorDataset(torch.randn(8, 4))
        trainer.fit(Net(), torch.utils.data.DataLoader(data, batch_size=2))
        print("fitted", trainer.global_rank, flush=True)
    """
LAUNCH = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1"]
PROGRAMS = {
    "accelerate launch": (
        ACCELERATED,
        [*LAUNCH, "--mixed_precision", "no", "--dynamo_backend", "no", "train.py"],
        [None],
    ),
    "lightning ddp": (LIGHTNING, ["train.py", "ddp"], [1]),
    "lightning ddp_spawn": (LIGHTNING, ["train.py", "ddp_spawn"], [1]),
}


@pytest.mark.parametrize(("text", "words", "ranks"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_launcher(tmp_path: Path, text: str, words: list[str], ranks: list[int | None]) -> None:
    write(tmp_path, {"train.py": text})
    ended = noclobber(["run", "--format", "json", "-o", "report.json", *words], tmp_path)
    assert ended.status == 1, ended.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    (finding,) = report["findings"]
    (blamed,) = [label for label in finding["labels"] if label["primary"]]
    assert "# written" in (tmp_path / "train.py").read_text().splitlines()[blamed["line"] - 1]
    processes = {one["id"]: one for one in report["processes"]}
    seen_by = [processes[one] for one in finding["processes"]]
    assert [one["rank"] for one in seen_by] == ranks
    assert all(one["parent"] is not None for one in seen_by)
    assert not any(one["why"] for one in report["processes"])
