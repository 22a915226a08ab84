"""Which GPU the library is shown, by the list that the process was started with."""

import pytest

from engine.tensorrt_llm.engine import hide_other_gpus


@pytest.mark.parametrize(
    ("device", "before", "after"),
    [
        ("cuda:0", None, "0"),
        ("cuda:3", None, "3"),
        ("cuda:1", "", "1"),
        ("cuda:1", "6,4,2", "4"),  # numbers of devices are places in the list, as CUDA has it
        ("cuda:1", "GPU-5f3a, GPU-9c1b", "GPU-9c1b"),
        ("cuda:0", "MIG-1d2e", "MIG-1d2e"),
        ("cuda:0", "2,-1,3", "2"),  # CUDA takes what is before the first that is none
    ],
)
def test_one_of_the_list(device: str, before: str | None, after: str) -> None:
    environ = {} if before is None else {"CUDA_VISIBLE_DEVICES": before}
    hide_other_gpus(device, environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": after}
