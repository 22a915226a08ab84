"""What has to be reached, as data: shares of the rate of products at 8192 x 8192 x 8192 in the same run, and limits.

The shares are 85 % of a prediction made before anything was measured.
"""

from dataclasses import dataclass

from benchmarks.gpu.products import BF16 as PRODUCT_BF16
from benchmarks.gpu.products import FP8_ROW
from benchmarks.gpu.shapes import BGE_M3, MINILM, QWEN3_06B, QWEN3_8B

BF16, FP8 = "fused bf16", "fused fp8"
TRANSFORMERS, SENTENCE_TRANSFORMERS = "transformers bf16", "sentence-transformers bf16"
WAYS = (FP8, BF16, TRANSFORMERS, SENTENCE_TRANSFORMERS)
PRODUCT_OF = {BF16: PRODUCT_BF16, FP8: FP8_ROW, TRANSFORMERS: PRODUCT_BF16, SENTENCE_TRANSFORMERS: PRODUCT_BF16}
NOTHING_CACHED, CACHED = "nothing cached", "cached"  # of a start


@dataclass(frozen=True, slots=True)
class Target:
    """One line: `metric` of what is at `kind`, `subject`, `precision` and `shape` in the rows."""

    kind: str
    subject: str
    precision: str
    shape: str
    metric: str
    bound: float
    is_lower_bound: bool = True
    unit: str = ""

    def is_met_by(self, value: float) -> bool:
        """NaN meets nothing."""
        return value >= self.bound if self.is_lower_bound else value <= self.bound


def _shares(subject: str, precision: str, shares: dict[int, float]) -> list[Target]:
    return [Target("model", subject, precision, f"S={seqlen}", "share", share) for seqlen, share in shares.items()]


def _at_most(kind: str, subject: str, precision: str, shape: str, metric: str, bound: float, unit: str = "") -> Target:
    return Target(kind, subject, precision, shape, metric, bound, False, unit)


def _latency(subject: str, precision: str, ms: float) -> list[Target]:
    return [
        _at_most("latency", subject, precision, "B=1 S=32", "p50", ms, "ms"),
        _at_most("latency", subject, precision, "B=1 S=32", "p99 / p50", 1.2),
    ]


TARGETS = (
    *_shares(QWEN3_06B.name, BF16, {128: 0.53, 512: 0.53, 8192: 0.46}),
    *_shares(QWEN3_8B.name, BF16, {128: 0.74, 512: 0.73, 8192: 0.65}),
    *_shares(QWEN3_8B.name, FP8, {128: 0.64, 512: 0.63, 8192: 0.51}),
    *_shares(BGE_M3.name, BF16, {128: 0.57, 512: 0.55, 8192: 0.42}),
    *(Target("ratio", QWEN3_8B.name, f"{FP8} / {BF16}", f"S={seqlen}", "times", 1.35) for seqlen in (128, 512, 8192)),
    Target("ratio", QWEN3_06B.name, f"{FP8} / {BF16}", "S=512", "times", 1.15),  # or its default stays bf16
    *_latency(QWEN3_8B.name, FP8, 2.5),
    *_latency(QWEN3_06B.name, BF16, 1.2),
    *_latency(MINILM.name, BF16, 0.4),
    Target("ratio", QWEN3_06B.name, f"{BF16} / {SENTENCE_TRANSFORMERS}", "log-normal", "times", 3.0),
    *(
        _at_most("padding", name, precision, "NaN", "changed rows", 0.0)
        for name, precision in ((MINILM.name, BF16), (BGE_M3.name, BF16), (QWEN3_06B.name, BF16), (QWEN3_8B.name, FP8))
    ),
    _at_most("cold start", QWEN3_06B.name, BF16, NOTHING_CACHED, "to the first embedding", 10.0, "s"),
    _at_most("cold start", QWEN3_8B.name, FP8, CACHED, "to the first embedding", 20.0, "s"),
    _at_most("server", QWEN3_8B.name, FP8, "both loads", "interactive p99", 60.0, "ms"),
    _at_most("server", QWEN3_06B.name, BF16, "both loads", "interactive p99", 20.0, "ms"),
    Target("server", QWEN3_8B.name, FP8, "both loads", "share of bulk kept", 0.85),
    Target("server", QWEN3_06B.name, BF16, "both loads", "share of bulk kept", 0.85),
)  # fmt: skip

# of a layer of the 8B model in FP8 on an H200 (estimates), at 8,192 tokens in texts of 512: microseconds
PREDICTED_US = {
    "qkv": 350.0, "o": 250.0, "gate_up": 1330.0, "down": 640.0, "attend": 170.0, "add_norm": 140.0, "rotate": 50.0,
    "quantize": 30.0, "activate": 150.0,
}  # fmt: skip
