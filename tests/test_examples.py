"""The programs of examples/: each broken one fails in plain PyTorch and is explained, each right one learns."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from . import served

EXAMPLES = Path(__file__).parents[1] / "examples"


class Broken(NamedTuple):
    """What must be found in a program: the code, and the source text of the line that each label points to."""

    name: str
    code: str
    save: str
    write: str
    read: str


BROKEN = (
    Broken("gan_digits", "NC103", "verdict = discriminator(fake)", "optimizer_d.step()", "loss_g.backward()"),
    Broken("residual_network", "NC101", "out = self.relu(self.bn2(self.conv2(out)))", "out += x", "loss.backward()"),
    Broken(
        "carried_lstm",
        "NC103",
        "out, state = self.lstm(self.embedding(letters), state)",
        "optimizer.step()",
        "loss.backward(retain_graph=True)",
    ),
)
RIGHT = (
    ("gan_digits_right", 10, r"distance (\S+)", 2.0, 5.0),  # 6.1 before training
    ("residual_network_right", 5, r"accuracy (\S+)", 0.85, 1.0),
    ("coordinate_network", 100, r"loss (\S+)", 0.0, 0.2),  # 0.39 before training
    (
        "carried_lstm_right",
        1,
        r"loss (\S+)",
        1.0,
        3.0,
    ),  # 4.5 before training, the logarithm of the size of the alphabet
)


def execute(*words: str) -> subprocess.CompletedProcess[str]:
    return served.run(words)


def line_of(path: Path, code: str) -> int:
    """The number of the one line that consists of this code, a comment aside."""
    lines = path.read_text().splitlines()
    found = [number for number, line in enumerate(lines, 1) if line.partition("  # ")[0].strip() == code]
    assert len(found) == 1, f"{path.name} has {len(found)} lines `{code}`"
    return found[0]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_broken_program_fails_in_plain_pytorch(broken: Broken) -> None:
    done = execute(str(EXAMPLES / f"{broken.name}.py"))
    assert done.returncode == 1
    assert "modified by an inplace operation" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_broken_program_is_explained_by_its_lines(broken: Broken, tmp_path: Path) -> None:
    script, output = EXAMPLES / f"{broken.name}.py", tmp_path / "report.json"
    done = execute("-m", "noclobber", "run", "--format", "json", "-o", str(output), str(script))
    assert done.returncode == 1, done.stderr
    assert "modified by an inplace operation" in done.stderr

    (finding,) = json.loads(output.read_text())["findings"]
    assert (finding["code"], finding["severity"]) == (broken.code, "error")
    labels: list[dict[str, Any]] = [label for label in finding["labels"] if label["role"] != "inside"]
    assert all(Path(label["path"]) == script for label in labels)
    assert {label["role"]: label["line"] for label in labels} == {
        "save": line_of(script, broken.save),
        "write": line_of(script, broken.write),
        "read": line_of(script, broken.read),
    }
    assert [label["role"] for label in labels if label["primary"]] == ["write"]
    assert finding["suggestions"]


@pytest.mark.parametrize(("name", "epochs", "measure", "least", "most"), RIGHT)
def test_right_program_learns_and_nothing_is_found(
    name: str, epochs: int, measure: str, least: float, most: float, tmp_path: Path
) -> None:
    script, output = EXAMPLES / f"{name}.py", tmp_path / "report.json"
    done = execute("-m", "noclobber", "run", "--format", "json", "-o", str(output), str(script), str(epochs))
    assert done.returncode == 0, done.stderr
    assert least <= float(re.findall(measure, done.stdout)[-1]) <= most
    assert json.loads(output.read_text())["findings"] == []


def test_the_workflow_runs_what_there_is() -> None:
    """What a workflow asks for must be options of the command line."""
    text = (EXAMPLES / "noclobber.yml").read_text()
    words = re.findall(r"run: noclobber (.*)", text)
    assert len(words) == 1
    done = execute("-m", "noclobber", *words[0].replace("train.py", "missing.py").split())
    assert done.returncode == 2
    assert done.stderr.endswith("missing.py': [Errno 2] No such file or directory\n")  # as python says it
