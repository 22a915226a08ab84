"""Models with heads through the whole engine, the fused one against the transformers engine; no server.

Both load the same folder of random weights as a server has them do, but for FP8, whose quality gate decides nothing.
Texts are of one length, and as many as one request has. Each engine gets them again and again, packed into batches that
it takes, two at a time: copies and the host's part are included. For SPLADE the fused engine's embeddings of the same
shape are measured, too.
"""

import contextlib
import gc
import importlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu import mixed
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.model_folders import Folders, ModelFolder, roomy_place
from benchmarks.gpu.random_models import batch_of
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.shapes import BERT_BASE, BGE_M3, LLAMA_8B, QWEN3_06B, TINY_BERT, TINY_QWEN3
from benchmarks.gpu.targets import BF16, FP8, SHARE_OF_EMBEDDINGS, TRANSFORMERS, num_of_texts
from benchmarks.gpu.throughput import note_ratios
from engine import registry
from engine.messages import LoadOptions
from engine.model.coverage import Use
from engine.model.tasks import Task
from engine.types import Batch, Engine, EngineError, OutputKind, compute, main_output

KIND = "heads"
NUM_TEXTS, _TINY_NUM_TEXTS = 100, 10
# Tokens of a generative reranker's pair that are not its document's: a query of 16, and about 74 of Qwen3's template.
_NUM_AROUND = 90
_MAX_NUM_TOKENS, _TINY_MAX_NUM_TOKENS = 16_384, 128
_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model by several ways, with texts of some lengths."""

    folder: ModelFolder
    ways: tuple[str, ...]
    seqlens: tuple[int, ...]  # tokens, of a generative reranker those of documents
    num_texts: int = NUM_TEXTS

    def key(self, way: str, seqlen: int) -> Key:
        """Of what is measured."""
        return Key(KIND, self.folder.shape.name, way, num_of_texts(self.folder.use, self.num_texts, seqlen))


def run(bench: Bench) -> None:
    """One engine after the other. One that fails takes no other with it."""
    with contextlib.ExitStack() as stack:
        place = os.environ.get("SCRATCH") or stack.enter_context(TemporaryDirectory(dir=roomy_place()))
        folders = Folders(Path(place, "models"), bench.clock.device)
        stack.callback(folders.close)
        for case in _tiny_cases() if bench.is_tiny else _cases():
            for way in case.ways:
                _run(bench, case, way, folders)
            for seqlen in case.seqlens:
                note_ratios(bench, KIND, case.folder.shape, case.key("", seqlen).shape)


def _cases() -> list[Case]:
    both = (BF16, TRANSFORMERS)
    return [
        Case(folder=ModelFolder(QWEN3_06B, Use.GENERATIVE_RERANK), ways=both, seqlens=(100, 200)),
        Case(folder=ModelFolder(BGE_M3, Use.RERANK), ways=both, seqlens=(128, 512)),
        Case(folder=ModelFolder(BERT_BASE, Use.EMBED), ways=(BF16,), seqlens=(128,)),
        Case(folder=ModelFolder(BERT_BASE, Use.SPARSE), ways=both, seqlens=(128,)),
        Case(folder=ModelFolder(LLAMA_8B, Use.RERANK), ways=(FP8, *both), seqlens=(512,)),
    ]


def _tiny_cases() -> list[Case]:
    config = {**TINY_QWEN3.config, "max_position_embeddings": 256}
    reranker = replace(TINY_QWEN3, max_seqlen=256, config=config)  # what is around a document is long
    return [
        Case(folder=ModelFolder(shape, use), ways=ways, seqlens=(8,), num_texts=_TINY_NUM_TEXTS)
        for shape, use, ways in (
            (reranker, Use.GENERATIVE_RERANK, (BF16, TRANSFORMERS)),
            (TINY_BERT, Use.EMBED, (BF16,)),
            (TINY_BERT, Use.SPARSE, (BF16, TRANSFORMERS)),
            (TINY_BERT, Use.RERANK, (FP8, BF16)),
        )
    ]


class _Loading:
    """An engine that is loaded when it is asked for first, so that a load that fails is a row."""

    def __init__(self, bench: Bench, case: Case, way: str, folders: Folders) -> None:
        self.bench = bench
        self.case = case
        self.way = way
        self._folders = folders
        self.seconds = 0.0  # that loading took

    @cached_property
    def engine(self) -> Engine:
        """Raises ModelError where it can't serve the model."""
        path, began = self._folders.begin(self.case.folder).result(), time.perf_counter()
        name = registry.TRANSFORMERS if self.way == TRANSFORMERS else registry.FUSED
        module = importlib.import_module(registry.ENGINES[name].module)
        engine: Engine = module.load(name="m", reason="a benchmark", options=self._options(path))
        self.seconds = time.perf_counter() - began
        return engine

    def _options(self, path: Path) -> LoadOptions:
        device, is_generative = self.bench.clock.device, self.case.folder.use is Use.GENERATIVE_RERANK
        return LoadOptions(
            device=str(device),
            path=str(path),
            dtype="float32" if device.type == "cpu" else "bfloat16",
            quantization="fp8" if self.way == FP8 else "none",
            task=Task.RERANK if is_generative else Task(self.case.folder.use),
            template="Qwen3-Reranker" if is_generative else None,
            max_num_tokens=_TINY_MAX_NUM_TOKENS if self.bench.is_tiny else _MAX_NUM_TOKENS,
            own={registry.FUSED: {"is_gated": False}},
        )

    def close(self) -> None:
        """Gives its memory back."""
        if "engine" in self.__dict__:
            self.engine.close()
            del self.engine
            gc.collect()  # graphs and engines know each other
            self.bench.release()


def _run(bench: Bench, case: Case, way: str, folders: Folders) -> None:
    """All lengths by one engine, which is loaded if there is one to measure."""
    loading = _Loading(bench, case, way, folders)
    try:
        for seqlen in case.seqlens:
            bench.measure(case.key(way, seqlen), partial(_measure, loading, seqlen))
    finally:
        loading.close()


def _measure(loading: _Loading, seqlen: int) -> Iterator[Figure]:
    case, bench, engine = loading.case, loading.bench, loading.engine
    yield Figure("load", loading.seconds, "s", "; ".join(engine.info.notes))
    num_tokens = seqlen + (_NUM_AROUND if case.folder.use is Use.GENERATIVE_RERANK else 0)
    batches = _batches(case, num_tokens, engine)
    mixed.warm_up(engine, [*batches, *batches])
    ran = mixed.drive(engine, batches, seconds=bench.sized(_SECONDS, 0.0))
    rate = ran.num_tokens / ran.seconds
    yield Figure("rate", rate, "tokens/s")
    yield Figure("texts", rate / num_tokens, "a second", f"of {num_tokens} tokens each")
    if OutputKind.SPARSE in batches[0].outputs:
        yield Figure("words a text", _num_words(engine, batches[0]), "")
    if case.folder.use is Use.SPARSE and loading.way == BF16:
        yield from _share_of_embeddings(bench, case, seqlen, rate)


def _batches(case: Case, seqlen: int, engine: Engine) -> list[Batch]:
    """One request's texts, in batches as large as the engine takes."""
    texts = batch_of(case.folder.shape, [seqlen] * case.num_texts).token_ids.reshape(-1, seqlen).tolist()
    outputs = main_output(engine.info.outputs)
    return [
        replace(batch, outputs=outputs) for batch in mixed.packed(texts, max_num_tokens=engine.limits.max_num_tokens)
    ]


def _num_words(engine: Engine, batch: Batch) -> float:
    results = compute(engine, batch)
    if isinstance(results, EngineError):
        raise results
    return len(results[OutputKind.SPARSE].values) / batch.num_seqs


def _share_of_embeddings(bench: Bench, case: Case, seqlen: int, rate: float) -> Iterator[Figure]:
    """Their rate must be known: the model that embeds comes first."""
    embed = replace(case, folder=replace(case.folder, use=Use.EMBED))
    if (other := bench.rows.value(embed.key(BF16, seqlen), "rate")) is not None:
        yield Figure(SHARE_OF_EMBEDDINGS, rate / other, "")
