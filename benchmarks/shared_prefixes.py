"""What it gains that a prefix which pairs of a reranker share is computed once, on a CPU.

    python -m benchmarks.shared_prefixes [--engine transformers|openvino] [--dtype float32|bfloat16]
        [--against CHECKOUT] [--layers N] [--rounds N] [--quick] [--write]

A model of Qwen3-Reranker-0.6B's shape with random weights and its published template ranks 100 documents of 100 or of
200 tokens for a query. First the engine alone, in batches of so many documents (cuts), which say what their sequences
share, or do not; each is counted at its own best cut. Then /rerank of this checkout's server, and, with --against, of
another checkout of this repository in turns; one document a request shows what it costs where nothing is shared. Fewer
layers are for a quick look.
"""

import argparse
import contextlib
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer

from benchmarks.measuring.processes import tree_cpu_seconds
from benchmarks.measuring.report import PACKAGES, Report, parse
from benchmarks.measuring.servers import ROOT, RunningServer, embedline
from benchmarks.measuring.texts import Prose
from benchmarks.peers.models import MINILM
from engine import registry
from engine.machine import cores
from engine.messages import LoadOptions
from engine.model.detection.templates import FAMILIES
from engine.selftest.warmup import warm_up
from engine.store.model_source import resolve
from engine.types import Batch, Engine, EngineError, OutputKind

THIS, OTHER = "this checkout", "the other"
LENGTHS = (100, 200)  # tokens of a document
_FAMILY = next(family for family in FAMILIES if family.name == "Qwen3-Reranker")
_QUERY = "how to keep a connection open between requests"
_CUTS = (1, 4, 16, 50)  # documents in a batch
_NUM_DOCUMENTS, _NUM_QUICK, _NUM_SINGLE = 100, 24, 8
_MARKERS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
_PATIENCE = 3600.0  # seconds


@dataclass(frozen=True, slots=True)
class Pairs:
    """A query with its documents, as text and as the model gets them."""

    documents: list[str]
    token_ids: list[NDArray[np.int32]]
    shared: list[int]  # leading tokens that each has as the one before

    @property
    def ratio(self) -> float:
        """Tokens that are sent, to those that are unique."""
        sent = sum(map(len, self.token_ids))
        return sent / (sent - sum(self.shared))

    def batches(self, cut: int, *, says_shared: bool) -> list[Batch]:
        """So many documents in each."""
        return [
            _batch(self.token_ids[at : at + cut], [0, *self.shared[at + 1 : at + cut]] if says_shared else None)
            for at in range(0, len(self.token_ids), cut)
        ]


def _batch(sequences: Sequence[NDArray[np.int32]], shared: Sequence[int] | None) -> Batch:
    cu_seqlens = np.cumsum([0, *map(len, sequences)], dtype=np.int32)
    packed = Batch("m", OutputKind.LOGITS, np.concatenate(sequences), cu_seqlens)
    return packed if shared is None else dataclasses.replace(packed, shared=np.array(shared, np.int32))


def make_model(folder: Path, num_layers: int) -> Path:
    """The model, with MiniLM's words and the markers of the template."""
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.gpu.random_models import build
    from benchmarks.gpu.shapes import QWEN3_06B

    described = json.loads((resolve(MINILM).path / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_str(json.dumps(described | {"post_processor": None, "truncation": None}))
    tokenizer.no_padding()
    tokenizer.add_special_tokens([AddedToken(marker, special=True) for marker in _MARKERS])
    shape = dataclasses.replace(
        QWEN3_06B,
        num_layers=num_layers,
        vocab_size=tokenizer.get_vocab_size(),
        config={**QWEN3_06B.config, "tie_word_embeddings": True},
    )
    build(shape, torch.device("cpu"), library_class=AutoModelForCausalLM).module.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def make_pairs(folder: Path, num_tokens: int, num_documents: int) -> Pairs:
    """Documents of about so many tokens."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    documents = Prose(folder / "tokenizer.json").uniform("documents", num_documents, num_tokens=num_tokens + 2).texts
    template = "".join(_FAMILY.template.parts).replace("{instruction}", _FAMILY.template.instruction)
    texts = [template.replace("{query}", _QUERY).replace("{document}", document) for document in documents]
    token_ids = [np.array(encoding.ids, np.int32) for encoding in tokenizer.encode_batch(texts)]
    shared = [0, *(_num_shared(before, after) for before, after in pairwise(token_ids))]
    return Pairs(documents, token_ids, shared)


def _num_shared(before: NDArray[np.int32], after: NDArray[np.int32]) -> int:
    most = min(len(before), len(after) - 1)
    differs = np.flatnonzero(before[:most] != after[:most])
    return int(differs[0]) if len(differs) else most


def _load(folder: Path, *, engine: str, dtype: str, cache: str) -> Engine:
    name, reason = registry.choose(engine)
    options = LoadOptions(
        device="cpu",
        path=str(folder),
        dtype=dtype,
        template=_FAMILY.name,
        num_threads=cores.usable(),
        cache_dir=cache,
        own={registry.OPENVINO: {"compiles_in_child": False}},
    )
    loaded = registry.load(name, name="m", reason=reason, options=options)
    print(*loaded.info.notes, warm_up(loaded), sep="\n", flush=True)
    return loaded


def _compute_all(engine: Engine, batches: Sequence[Batch]) -> None:
    """Until all are back, with as many in the engine as it takes."""
    num_inside = 0
    for batch in batches:
        if num_inside == engine.limits.depth:
            _collect(engine)
            num_inside -= 1
        engine.submit(batch)
        num_inside += 1
    for _ in range(num_inside):
        _collect(engine)


def _collect(engine: Engine) -> None:
    _, results = engine.collect()
    if isinstance(results, EngineError):
        raise results


@dataclass(frozen=True, slots=True)
class Took:
    """What something took: by the clock, and of all cores."""

    seconds: float
    cpu_seconds: float


def measured(run: Callable[[], object], cpu_seconds: Callable[[], float]) -> Took:
    """Run it. cpu_seconds: of those who work for it, so far."""
    began, worked = time.perf_counter(), cpu_seconds()
    run()
    return Took(time.perf_counter() - began, cpu_seconds() - worked)


def _least(each: Sequence[Took]) -> Took:
    return Took(min(took.seconds for took in each), min(took.cpu_seconds for took in each))


def of_engine(report: Report, engine: Engine, pairs: Pairs, *, rounds: int, num_tokens: int) -> None:
    """The table's rows of one length, with and without."""
    found: dict[tuple[bool, int], list[Took]] = {}
    for number in range(rounds):
        for cut in _CUTS:
            for says_shared in (False, True)[:: 1 if number % 2 else -1]:
                run = partial(_compute_all, engine, pairs.batches(cut, says_shared=says_shared))
                found.setdefault((says_shared, cut), []).append(measured(run, time.process_time))
    best = {}
    for says_shared in (False, True):
        least = {cut: _least(found[says_shared, cut]) for cut in _CUTS}
        best[says_shared] = _least(list(least.values()))
        cells = {f"batches of {cut}": f"{took.seconds:.2f} ({took.cpu_seconds:.2f})" for cut, took in least.items()}
        report.row({"tokens": num_tokens, "shared": "once" if says_shared else "not", **cells})
    report.row({"tokens": num_tokens, "shared": "once, against not", **_gains(best[False], best[True], pairs.ratio)})


def of_servers(
    report: Report, servers: dict[str, RunningServer], pairs: Pairs, *, rounds: int, num_tokens: int
) -> None:
    """The same over HTTP, with all documents in one request, and with one in each of a few requests."""

    def all_at_once(server: RunningServer) -> None:
        server.score(_QUERY, pairs.documents, patience=_PATIENCE)

    def singly(server: RunningServer) -> None:
        for document in pairs.documents[:_NUM_SINGLE]:
            server.score(_QUERY, [document], patience=_PATIENCE)

    for what, ask, ratio in (
        (f"{len(pairs.documents)} documents", all_at_once, pairs.ratio),
        (f"{_NUM_SINGLE} times one", singly, 1.0),
    ):
        found: dict[str, list[Took]] = {name: [] for name in servers}
        for number in range(rounds):
            for name, server in list(servers.items())[:: 1 if number % 2 else -1]:
                cpu_seconds = partial(tree_cpu_seconds, server.process.pid)
                found[name].append(measured(partial(ask, server), cpu_seconds))
        least = {name: _least(each) for name, each in found.items()}
        cells = {name: f"{took.seconds:.2f} ({took.cpu_seconds:.2f})" for name, took in least.items()}
        gains = _gains(least[OTHER], least[THIS], ratio) if OTHER in least else {}
        raw = {name: [dataclasses.asdict(took) for took in each] for name, each in found.items()}
        report.row({"tokens": num_tokens, "request": what, **cells, **gains}, {"request": what, **gains, **raw})


def _wait(server: RunningServer) -> None:
    """Raises ServerFailed."""
    server.wait_for(lambda seconds: server.score(_QUERY, ["a document"], patience=seconds), patience=_PATIENCE)


def _gains(before: Took, after: Took, ratio: float) -> dict[str, str]:
    """ratio: of tokens sent to unique ones, which is what can be gained."""
    seconds, cpu = before.seconds / after.seconds, before.cpu_seconds / after.cpu_seconds
    return {
        "sent to unique": f"{ratio:.2f}",
        "times as fast": f"{seconds:.2f}",
        "of sent to unique": f"{100 * seconds / ratio:.0f} %",
        "CPU seconds, times less": f"{cpu:.2f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("transformers", "openvino"), default="transformers")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--only", choices=("engine", "http"))
    arguments = parse(parser)
    of_all = (arguments.rounds, arguments.layers, _NUM_DOCUMENTS)
    rounds, layers, num_documents = (1, 2, _NUM_QUICK) if arguments.quick else of_all
    title = f"A shared prefix computed once: {arguments.engine}, {arguments.dtype}, on a CPU"
    report = Report(f"shared-prefixes-{arguments.engine}", title, packages=(*PACKAGES, "openvino"))
    with tempfile.TemporaryDirectory() as made:
        folder = make_model(Path(made, "model"), layers)
        pairs = {length: make_pairs(folder, length, num_documents) for length in arguments.lengths}
        if arguments.only != "http":
            loaded = _load(folder, engine=arguments.engine, dtype=arguments.dtype, cache=str(Path(made, "cache")))
            report.table("The engine alone: the least seconds (and CPU seconds) for all documents")
            for length, each in pairs.items():
                of_engine(report, loaded, each, rounds=rounds, num_tokens=length)
            loaded.close()
            del loaded
        if arguments.only != "engine":
            flags = ("--model-id", str(folder), "--template", _FAMILY.name, "--engine", arguments.engine)
            roots = {THIS: ROOT} | ({OTHER: arguments.against.absolute()} if arguments.against else {})
            report.table("/rerank: the least seconds (and CPU seconds) of a request")
            with contextlib.ExitStack() as stack:
                servers = {}
                for name, root in roots.items():
                    recipe = embedline(*flags, "--dtype", arguments.dtype, name=name, root=root)
                    servers[name] = RunningServer(recipe, cache=Path(made, "cache", name))
                    stack.callback(servers[name].stop)
                    _wait(servers[name])
                for length, each in pairs.items():
                    of_servers(report, servers, each, rounds=rounds, num_tokens=length)
    report.note(f"{layers} layers; a query of {len(_QUERY.split())} words, {num_documents} documents.")
    report.note("With and without take turns. Of a gain, each counts at its own best size of batches.")
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
