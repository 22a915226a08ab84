"""What is checked, in the order of the report."""

from collections.abc import Iterator

from benchmarks.gpu.shapes import QWEN3_06B
from tests.tensorrt_llm_gpu.job import SEQLENS, Job, Shape
from tests.tensorrt_llm_gpu.judging import Check, cosines, refused, scores, served_or, speeds
from tests.tensorrt_llm_gpu.small_models import ENCODERS, FAMILIES, WINDOW

# What these models lose by bf16 is less, and by a wrong mask or row more: see small_models
_LEAST, _MOST = 0.999, 0.05
_UPSTREAM = 1.5e-2  # what upstream's own tests allow its BERT
_FP8_MEDIAN, _FP8_FIRST_PERCENTILE = 0.998, 0.995
_SHORT = (1, 5, 17, 31, 33, WINDOW)  # tokens
_SHAPES = tuple(
    Shape(num_seqs=num_seqs, seqlen=seqlen)
    for num_seqs, seqlen in ((1, 32), (8, 32), (32, 32), (1, 512), (32, 512), (2, 8192))
)
_SMALL_SHAPES = (Shape(num_seqs=1, seqlen=32), Shape(num_seqs=8, seqlen=32))
_ENGINE_ON_FP8 = {"quantization": "fp8"}
_MANY_TOKENS = 1 << 22  # of a batch: more than a small share of any GPU's memory holds
_TEXTS = 1024  # tokens at most


def checks(*, model: str, is_toy: bool) -> list[Check]:
    """`model`: a folder, "" = none; is_toy: what takes long on a CPU is small."""
    found = [*_parity(), *_batching(), *_masks(), *_lower_precision(), *_stock(), *_graphs(), *_memory(is_toy)]
    if model:
        found += _real(model)
    return [*found, *_speed(is_toy)]


def _expected(model: str, seqlens: tuple[int, ...] = SEQLENS, dtype: str = "float32") -> Job:
    return Job(model=model, by="transformers", options={"dtype": dtype}, seqlens=seqlens)


def _engine(model: str) -> Job:
    return Job(model=model, by="engine")


def _parity() -> Iterator[Check]:
    section = "Rows against transformers in float32 on the same device"
    for family in FAMILIES:
        yield Check(section, f"{family}, last token", (_engine(family), _expected(family)), cosines(_LEAST))
        bf16 = _expected(family, dtype="bfloat16")
        yield Check(section, f"{family}: transformers' own in bf16", (bf16, _expected(family)), cosines())  # for scale
    for family in FAMILIES:
        name = f"{family}, scores"
        yield Check(section, name, (_engine(name), _expected(name)), scores(_MOST))
    for encoder in ENCODERS:
        yield Check(section, f"{encoder}, mean", (_engine(encoder), _expected(encoder)), cosines(_LEAST))
        name = f"{encoder}, scores"
        yield Check(section, name, (_engine(name), _expected(name)), scores(_MOST))
    for name in ("qwen3, answer", "llama, answer"):
        yield Check(section, f"{name}: yes less no", (_engine(name), _expected(name)), scores(_MOST))


def _batching() -> Iterator[Check]:
    section = "The same texts alone and together"
    for family in FAMILIES:
        alone = Job(model=family, by="engine", are_alone=True)
        yield Check(section, family, (_engine(family), alone), cosines(_LEAST))


def _masks() -> Iterator[Check]:
    section = "Who sees whom"
    for family in FAMILIES:
        name = f"{family}, all see all"
        yield Check(section, f"{name}, mean", (_engine(name), _expected(name)), cosines(_LEAST))
    windowed = "mistral, window"
    within = Job(model=windowed, by="engine", options={"max_seqlen": WINDOW}, seqlens=_SHORT)
    yield Check(
        section, f"mistral within its window of {WINDOW}", (within, _expected(windowed, _SHORT)), cosines(_LEAST)
    )
    yield Check(section, "mistral beyond its window", (_engine(windowed),), refused("--max-input-length"))


def _lower_precision() -> Iterator[Check]:
    section = "Block FP8 against bf16 in the same engine"
    judge = cosines(median=_FP8_MEDIAN, first_percentile=_FP8_FIRST_PERCENTILE)
    for family in FAMILIES:
        name = f"{family}, tame"
        lower = Job(model=name, by="engine", options=_ENGINE_ON_FP8)
        yield Check(section, f"{name}, last token", (lower, _engine(name)), judge)


def _stock() -> Iterator[Check]:
    section = "Upstream's own classes"
    stock = {"tensorrt_llm_model_class": "stock"}
    ours = Job(model="qwen3", by="engine")
    yield Check(
        section,
        "Qwen3ForTextEmbedding against our class",
        (Job(model="qwen3", by="engine", options=stock), ours),
        cosines(_LEAST),
    )
    for name, title in (("bert, scores", "BertForSequenceClassification"), ("qwen2, reward", "Qwen2ForRewardModel")):
        job = Job(model=name, by="engine", options=stock)
        most = _UPSTREAM if name.startswith("bert") else _MOST
        yield Check(section, f"{title} against transformers", (job, _expected(name)), scores(most))


def _graphs() -> Iterator[Check]:
    section = "CUDA graphs of small shapes"
    for name in ("qwen3", "qwen3, all see all", "xlm-roberta"):  # the last token, the mean, other positions
        recorded = Job(
            model=name, by="engine", options={"tensorrt_llm_cuda_graphs": True}, seqlens=_SHORT, shapes=_SMALL_SHAPES
        )
        eager = Job(model=name, by="engine", seqlens=_SHORT, shapes=_SMALL_SHAPES)
        yield Check(section, f"{name}: with and without", (recorded, eager), cosines(_LEAST))
        yield Check(section, f"{name}: how long, with and then without", (recorded, eager), speeds)


def _memory(is_toy: bool) -> Iterator[Check]:
    limits = {} if is_toy else {"memory_share": 0.05, "max_num_tokens": _MANY_TOKENS, "max_num_seqs": 4096}
    job = Job(model="qwen3", by="engine", options=limits)
    yield Check("Batches larger than memory", "found before it serves", (job,), served_or("out of memory"))


def _real(model: str) -> Iterator[Check]:
    section = "The model that was named, on texts"
    job = Job(model=model, by="engine", options={"max_seqlen": _TEXTS}, seqlens=())
    alone = Job(model=model, by="engine", options={"max_seqlen": _TEXTS}, seqlens=(), are_alone=True)
    lower = Job(model=model, by="engine", options={"max_seqlen": _TEXTS, **_ENGINE_ON_FP8}, seqlens=())
    expected = Job(model=model, by="transformers", options={"dtype": "float32"}, seqlens=())
    yield Check(section, "against transformers in float32", (job, expected), cosines(0.99))
    yield Check(section, "alone and together", (job, alone), cosines(_LEAST))
    judge = cosines(median=_FP8_MEDIAN, first_percentile=_FP8_FIRST_PERCENTILE)
    yield Check(section, "block FP8 against bf16", (lower, job), judge)


def _speed(is_toy: bool) -> Iterator[Check]:
    section = f"Speed with weights at random in the shape of {QWEN3_06B.name}, one batch after the other"
    model, shapes = ("qwen3", _SMALL_SHAPES) if is_toy else (QWEN3_06B.name, _SHAPES)
    for title, options in (("bf16", {}), ("block FP8", _ENGINE_ON_FP8)):
        job = Job(model=model, by="engine", options={"max_seqlen": 8192, **options}, seqlens=(5, 17), shapes=shapes)
        yield Check(section, title, (job,), speeds)
