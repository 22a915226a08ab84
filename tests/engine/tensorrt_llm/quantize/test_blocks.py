"""The arithmetic is that of transformers' own quantizer, to the bit, and harmless where that one's is not."""

from typing import Any

import torch
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Quantize
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

from engine.tensorrt_llm.quantize.job import _float32, quantize_rows


def weight(dtype: torch.dtype) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(0)
    return (torch.randn(256, 384, generator=numbers) * torch.logspace(-3, 3, 384)).to(dtype)


def test_values_and_scales_are_those_of_transformers() -> None:
    theirs: Any = Fp8Quantize(FineGrainedFP8HfQuantizer(FineGrainedFP8Config()))  # type: ignore[no-untyped-call]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rows = weight(dtype)
        expected: dict[str, torch.Tensor] = theirs._quantize_one("a.weight", rows)

        ours = quantize_rows(rows)

        assert torch.equal(ours.values.view(torch.uint8), expected["a.weight"].view(torch.uint8))
        assert torch.equal(ours.scales, expected["a.weight_scale_inv"])


def test_the_error_is_what_was_lost() -> None:
    rows = weight(torch.bfloat16)

    ours = quantize_rows(rows)

    spread = ours.scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    lost = (ours.values.float() * spread - rows.float()).double().square().sum()
    assert abs(ours.squared_error / float(lost) - 1) < 1e-5
    assert abs(ours.squared_sum / float(rows.double().square().sum()) - 1) < 1e-5


def test_every_value_is_read_as_torch_reads_it() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    finite = every[every.float().isfinite()]
    assert len(finite) == 254
    assert torch.equal(_float32(finite), finite.float())


def test_zeros_and_the_smallest_numbers_stay_finite() -> None:
    rows = torch.zeros(128, 384)
    rows[:, 128:256] = 1e-39  # 448 divided by it is no float32 number
    rows[0, 300] = -1e-20

    ours = quantize_rows(rows)

    assert ours.scales.isfinite().all()
    assert ours.scales[0, 0] == ours.scales[0, 1] == 1
    assert not ours.values[:, :256].float().any()
    assert torch.allclose(ours.values[0, 300].float() * ours.scales[0, 2], rows[0, 300])


def test_what_is_not_finite_shows_in_the_sum() -> None:
    for number in (torch.inf, torch.nan):
        rows = torch.ones(128, 128)
        rows[5, 7] = number
        assert not torch.tensor(quantize_rows(rows).squared_sum).isfinite()
