"""The words for the device of a fake run."""

from __future__ import annotations

import pytest

from noclobber.model.fake import Gpu, gpu_of


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("cuda", Gpu("cuda", 1, "H100")),
        ("cuda:8", Gpu("cuda", 8, "H100")),
        ("cuda:08", Gpu("cuda", 8, "H100")),
        ("cuda:10", Gpu("cuda", 10, "H100")),
        ("cuda:a100", Gpu("cuda", 1, "A100")),
        ("cuda:8xA100", Gpu("cuda", 8, "A100")),
        ("cpu", Gpu("cpu", 0, "H100")),
    ],
)
def test_a_device_by_its_words(text: str, gpu: Gpu) -> None:
    assert gpu_of(text) == gpu


@pytest.mark.parametrize("text", ["cuda:0", "cuda:00", "cuda:0xH100", "cuda:00xH100", "cuda:-1", "cuda:B52", "tpu"])
def test_no_gpu_and_one_that_is_not_known_are_no_device(text: str) -> None:
    with pytest.raises(ValueError, match="is not a device"):
        gpu_of(text)
