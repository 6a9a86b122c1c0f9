"""`noclobber run --fake`: a program on a GPU that is played, to its third step."""

import json

import pytest

from tests import served

TRAINER = """
import torch
from torch import nn
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(4096, 4096), nn.Sigmoid()).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4096))
for epoch in range(1000):
    for (x,) in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
        y = model(x.to(device))
        WRITE
        loss = y.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(device, loss.item())
        torch.save(model.state_dict(), "model.pt")
"""


def run(folder, source, *options):
    (folder / "train.py").write_text(source)
    return served.run(["-m", "noclobber", "run", "--fake", *options, "train.py"], folder)


def test_a_program_runs_to_its_third_step(tmp_path):
    done = run(tmp_path, TRAINER.replace("WRITE", "y = y + 1"), "--ledger", "--device", "cuda:T4")
    assert done.stdout == "cuda 1.0\n" * 2
    assert done.returncode == 0
    assert "nothing found in 3 backward calls, in a run without values" in done.stderr
    assert "the program was stopped after 3 optimizer steps" in done.stderr
    assert "values were asked for at 1 place" in done.stderr
    assert "train.py:16 (`item`)" in done.stderr
    assert "does it fit in 16.0 GB? yes" in done.stderr
    assert not (tmp_path / "model.pt").exists()


def test_a_stale_save_is_found(tmp_path):
    done = run(tmp_path, TRAINER.replace("WRITE", "y += 1"), "--format", "json")
    report = json.loads(done.stderr[done.stderr.index("{\n") :])
    assert [one["code"] for one in report["findings"]] == ["NC101"]
    assert report["coverage"]["fake"] is True
    assert done.returncode == 1


def test_an_error_out_of_fake_tensors_has_our_words(tmp_path):
    done = run(tmp_path, "import torch\ntorch.nn.LazyLinear(3)\n")
    assert "noclobber: this error may come from the run without values" in done.stderr


SPAWNS = """
import torch

def train(rank):
    torch.ones(3, requires_grad=True).exp().sum().backward()

if __name__ == "__main__":
    train(0) if OWN else None
    START
"""


def test_threads_that_ran_with_their_values_are_told(tmp_path):
    ours = "    train(0) if OWN else None\n    START\n"
    threads = (
        "    import threading\n    one = threading.Thread(target=train, args=(0,))\n    one.start()\n    one.join()\n"
    )
    done = run(tmp_path, SPAWNS.replace(ours, threads))
    assert "nothing found in 1 backward call" in done.stderr
    assert "without values" not in done.stderr
    assert "1 backward call of other threads ran with values" in done.stderr


@pytest.mark.parametrize("own", [True, False])
def test_processes_that_ran_with_their_values_are_told(tmp_path, own):
    start = "for rank in '12': torch.multiprocessing.get_context('spawn').Process(target=train, args=rank).start()"
    done = run(tmp_path, SPAWNS.replace("OWN", str(own)).replace("START", start))
    assert f"nothing found in {2 + own} backward calls of 3 processes" in done.stderr
    assert "without values" not in done.stderr
    assert "2 processes of the program ran with their values" in done.stderr


def test_of_processes_that_spawn_starts_one_runs_without_values(tmp_path):
    start = "torch.multiprocessing.spawn(train, nprocs=2)"
    done = run(tmp_path, SPAWNS.replace("OWN", "False").replace("START", start))
    assert "nothing found in 1 backward call, in a run without values" in done.stderr
    assert "the program starts 2 processes: only the one of rank 0 ran, in this one" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "tpu"], "write cuda, cuda:8xH100, xpu or cpu"),
        (["--shapes", "8x"], "'8x' is not the shape of a tensor"),
        (["--shapes", "8:int65"], "'int65' is not a dtype"),
        (["--shapes", "a=8,9"], "names some of its tensors"),
        (["--shapes", "a=8,a=9"], "names `a` twice"),
        (["--every", "9"], "--fake and --every do not go together"),
        (["--world-size", "2", "--rank", "2"], "--rank 2 is none of --world-size 2"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, options, words):
    done = run(tmp_path, "", *options)
    assert done.returncode == 2
    assert words in done.stderr


def test_an_option_of_a_fake_run_needs_one(tmp_path):
    (tmp_path / "train.py").write_text("")
    done = served.run(["-m", "noclobber", "run", "--steps", "3", "train.py"], tmp_path)
    assert done.returncode == 2
    assert "--steps needs --fake" in done.stderr


EMPTY = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Embedding(50_000, 4096).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.empty(0)), batch_size=4, shuffle=True, num_workers=2)
print(len(loader))
for batch in loader:
    print(TAKE)
    model(batch["input_ids"].cuda() if type(batch) is dict else torch.ones(3).long().cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("shapes", "take", "seen"),
    [
        ("input_ids=8x4096:int64,mask=8", "[(k, *v.shape, v.dtype) for k, v in batch.items()]",
         "[('input_ids', 8, 4096, torch.int64), ('mask', 8, torch.float32)]"),
        ("8x3x224x224,8:int64", "type(batch), batch[0].shape, batch[1].dtype",
         "<class 'list'> torch.Size([8, 3, 224, 224]) torch.int64"),
        ("8x3", "batch.shape", "torch.Size([8, 3])"),
        ("8x3,", "[one.shape for one in batch]", "[torch.Size([8, 3])]"),
    ],
)  # fmt: skip
def test_batches_of_the_shapes_that_are_asked_for(tmp_path, shapes, take, seen):
    done = run(tmp_path, EMPTY.replace("TAKE", take), "--shapes", shapes)
    assert done.stdout == f"3\n{seen}\n{seen}\n{seen}\n"
    assert "nothing found in 3 backward calls, in a run without values" in done.stderr
    assert "was not used" not in done.stderr


MISSING = """
import numpy, torch

def batch(split, size=12):
    data = numpy.memmap(split + ".bin", numpy.uint16)
    return torch.from_numpy(data[:size]).cuda()

class Data:
    def __init__(self, file):
        self.file = file
    def __iter__(self):
        yield from open(self.file)

model = torch.nn.Linear(3, 4096).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in TAKE:
    model(x).sum().backward()
    optimizer.step()
    print(x.device, x.shape)
"""


@pytest.mark.parametrize(
    ("name", "take"), [("batch", "(batch('train', size=3) for _ in range(9))"), ("Data.__iter__", "Data('train.txt')")]
)
def test_a_function_of_the_program_gives_batches(tmp_path, name, take):
    done = run(tmp_path, MISSING.replace("TAKE", take), "--shapes", f"{name}()=512x3")
    assert done.stdout == "cuda:0 torch.Size([512, 3])\n" * 2
    assert "nothing found in 3 backward calls, in a run without values" in done.stderr


def test_a_function_of_another_file_gives_batches(tmp_path):
    whole, _, training = MISSING.partition("model = ")
    (tmp_path / "data.py").write_text(whole)
    training = training.replace("TAKE", "(batch(0) for _ in range(9))")
    done = run(tmp_path, f"import torch\nfrom data import batch\nmodel = {training}", "--shapes", "batch()=512x3")
    assert done.stdout == "cuda:0 torch.Size([512, 3])\n" * 2


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ("8x3", "the program asked no `DataLoader` for a batch"),
        ("batch()=8x3", "the program did not call a function `batch` of its files"),
    ],
)
def test_shapes_that_nobody_asks_for_are_told(tmp_path, shapes, words):
    done = run(tmp_path, TRAINER.partition("data =")[0], "--shapes", shapes)
    assert f"`--shapes` was not used: {words}" in done.stderr


DATA = """
import numpy, torch
images = torch.from_numpy(numpy.arange(2**20).reshape(1024, 1024))
kept = images[images[:, 0] > 2**19]
model = torch.nn.Linear(1024, 4, device="cuda")
model(kept.float().cuda()).sum().backward()
print(len(kept), kept.sum().item())
"""


def test_a_data_set_of_numpy_keeps_its_values(tmp_path):
    done = run(tmp_path, DATA)
    assert done.stdout == f"511 {sum(range(513 * 1024, 1024 * 1024))}\n"
    assert "values were asked for" not in done.stderr
