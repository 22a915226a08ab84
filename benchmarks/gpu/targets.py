"""What has to be reached, as data: shares of the rate of products at 8192 x 8192 x 8192 in the same run, and limits.

They are what the next run is to reach, by what the first H100 showed and what is calculated to be still open.
"""

from dataclasses import dataclass

from benchmarks.gpu.shapes import BERT_BASE, BGE_M3, LLAMA_8B, MINILM, QWEN3_06B, QWEN3_8B
from engine.model.coverage import Use

BF16, FP8 = "fused bf16", "fused fp8"
TRANSFORMERS, SENTENCE_TRANSFORMERS = "transformers bf16", "sentence-transformers bf16"
GRAPH, COMPILED = "transformers sdpa, graph", "transformers sdpa, compiled, graph"
WAYS = (FP8, BF16, TRANSFORMERS, GRAPH, COMPILED, SENTENCE_TRANSFORMERS)
PRODUCT_BF16, FP8_ROW, FP8_TENSOR, FP8_BLOCK = "bf16", "fp8 row", "fp8 tensor", "fp8 1x128"  # precisions of products
PRODUCT_OF = {way: FP8_ROW if way == FP8 else PRODUCT_BF16 for way in WAYS}
NOTHING_CACHED, CACHED = "nothing cached", "cached"  # of a start
SHARE_OF_EMBEDDINGS = "share of the rate of embeddings"


def num_of_texts(use: Use, num: int, seqlen: int) -> str:
    """What a model with a head is given."""
    return f"{use}, {num} of {seqlen} tokens"


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


def _at_least(subject: str, one: str, other: str, times: float, what: str = "S=512") -> Target:
    return Target("ratio", subject, f"{one} / {other}", what, "times", times)


TARGETS = (
    *_shares(QWEN3_8B.name, FP8, {512: 0.88, 8192: 0.76}),
    *_shares(QWEN3_8B.name, BF16, {512: 0.92}),
    *_shares(QWEN3_06B.name, BF16, {512: 0.70}),
    *_shares(BGE_M3.name, BF16, {512: 0.77}),
    *_shares(BERT_BASE.name, BF16, {512: 0.74}),
    _at_least(QWEN3_06B.name, FP8, BF16, 1.2),  # or its default stays bf16
    _at_least(QWEN3_06B.name, BF16, GRAPH, 3.1),
    _at_least(BERT_BASE.name, BF16, GRAPH, 6.5),
    *(
        _at_least(QWEN3_06B.name, BF16, TRANSFORMERS, 2.5, num_of_texts(Use.GENERATIVE_RERANK, 100, seqlen))
        for seqlen in (100, 200)
    ),
    *(
        _at_least(BGE_M3.name, BF16, TRANSFORMERS, 2.0, num_of_texts(Use.RERANK, 100, seqlen))
        for seqlen in (128, 512)
    ),
    _at_least(LLAMA_8B.name, FP8, BF16, 1.5, num_of_texts(Use.RERANK, 100, 512)),
    Target("heads", BERT_BASE.name, BF16, num_of_texts(Use.SPARSE, 100, 128), SHARE_OF_EMBEDDINGS, 0.6),
    _at_most("latency", QWEN3_8B.name, FP8, "B=1 S=32", "p50", 3.4, "ms"),
    _at_most("latency", QWEN3_06B.name, BF16, "B=1 S=32", "p50", 0.85, "ms"),
    _at_most("latency", BERT_BASE.name, BF16, "B=1 S=32", "p50", 0.30, "ms"),
    Target("model", BGE_M3.name, BF16, "S=512", "share of best at T=1024", 0.80),
    Target("model", BERT_BASE.name, BF16, "S=512", "share of best at T=1024", 0.70),
    *(
        _at_most("padding", name, precision, "NaN", "changed rows", 0.0)
        for name, precision in ((MINILM.name, BF16), (BGE_M3.name, BF16), (QWEN3_06B.name, BF16), (QWEN3_8B.name, FP8))
    ),
    _at_most("cold start", QWEN3_8B.name, FP8, CACHED, "to the first embedding", 20.0, "s"),
    _at_most("server", QWEN3_8B.name, FP8, "both loads", "interactive p99", 60.0, "ms"),
    _at_most("server", QWEN3_06B.name, BF16, "both loads", "interactive p99", 20.0, "ms"),
    Target("server", QWEN3_8B.name, FP8, "bulk alone", "share of the engine's rate", 0.97),
    Target("server", QWEN3_06B.name, BF16, "bulk alone", "share of the engine's rate", 0.90),
    Target("server", QWEN3_8B.name, FP8, "both loads", "share of bulk kept", 0.85),
    Target("server", QWEN3_06B.name, BF16, "both loads", "share of bulk kept", 0.85),
)  # fmt: skip

# Of a layer at 8,192 tokens in texts of 512, on the first H100 (27 November 2026): microseconds
FIRST_US = {
    (QWEN3_8B.name, FP8): dict(
        qkv=290, o=193, gate_up=1101, down=569, attend=201, activate=171, add_norm=158, rotate=62, quantize=34),
    (QWEN3_8B.name, BF16): dict(
        qkv=587, o=378, gate_up=2200, down=1098, attend=205, activate=202, add_norm=179, rotate=60),
    (QWEN3_06B.name, BF16): dict(qkv=98, o=47, gate_up=146, down=68, attend=94, activate=52, add_norm=46, rotate=39),
    (BGE_M3.name, BF16): dict(qkv=77, o=28, gate_up=97, down=87, attend=60, activate=51, add_norm=37),
    (BERT_BASE.name, BF16): dict(qkv=50, o=20, gate_up=59, down=51, attend=46, activate=39, add_norm=30),
}  # fmt: skip
