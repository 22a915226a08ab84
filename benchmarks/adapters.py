"""What adapters that are computed beside a model cost: a batch with them and without, a start and memory with many.

    python -m benchmarks.adapters [--engines transformers openvino] [--ranks 8 16 64] [--rounds N] [--quick] [--write]

BERT-base's shape with arbitrary weights and a small vocabulary, adapters on all of its linear layers but the pooler,
one thread. The engine is asked directly, in this process: once without any adapter, and once with one of each rank and
some of rank 16, in turn. Starts have a process of their own each. It measures neither HTTP nor batching, and no text.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel

from benchmarks.measuring.processes import tree_pss_mb
from benchmarks.measuring.report import PACKAGES, Report, parse
from benchmarks.measuring.servers import ROOT
from engine import registry
from engine.messages import LoadOptions
from engine.types import Batch, Engine, EngineError, OutputKind, compute

_CONFIG = BertConfig(vocab_size=1000)
_LINEARS = (
    *(f"attention.self.{name}" for name in ("query", "key", "value")),
    *("attention.output.dense", "intermediate.dense", "output.dense"),
)
_MIXED_RANK, _NUM_MIXED = 16, 8
_NUM_MANY = 100
# tokens of each sequence
_BATCHES = {"8 texts of 64 tokens": [64] * 8, "a query of 16 tokens": [16]}
_ALONE, _UNUSED = "none loaded", "none chosen"
_SECONDS = 0.4  # of one variant in one round


def save_model(folder: Path, num_layers: int) -> Path:
    """The base."""
    torch.manual_seed(0)
    config = BertConfig(**{**_CONFIG.to_dict(), "num_hidden_layers": num_layers})
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def save_adapter(base: Path, folder: Path, rank: int, num_layers: int) -> Path:
    """As PEFT saves it."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "base_model_name_or_path": str(base)}
    config["target_modules"] = list(_LINEARS)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = {}
    sizes = {"intermediate.dense": (768, 3072), "output.dense": (3072, 768)}
    for layer in range(num_layers):
        for linear in _LINEARS:
            size, to_size = sizes.get(linear, (768, 768))
            name = f"base_model.model.encoder.layer.{layer}.{linear}"
            tensors[f"{name}.lora_A.weight"] = 0.02 * torch.randn(rank, size)
            tensors[f"{name}.lora_B.weight"] = 0.02 * torch.randn(to_size, rank)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def load(engine: str, base: Path, adapters: Mapping[str, Path], dtype: str) -> Engine:
    """In this process, with nothing kept on the disk."""
    loras = tuple((name, str(folder)) for name, folder in adapters.items())
    options = LoadOptions(device="cpu", path=str(base), dtype=dtype, loras=loras)
    return registry.load(engine, name="m", reason="asked", options=options)


def batch_of(seqlens: list[int], adapters: list[int]) -> Batch:
    """Arbitrary ids."""
    cu_seqlens = np.cumsum([0, *seqlens], dtype=np.int32)
    ids = np.random.default_rng(0).integers(5, _CONFIG.vocab_size, cu_seqlens[-1], np.int32)
    return Batch("m", OutputKind.POOLED, ids, cu_seqlens, adapters=np.array(adapters, np.int32) if adapters else None)


def least_ms(loaded: Engine, batch: Batch) -> float:
    """Milliseconds of CPU time of the quickest of as many as fit into _SECONDS: others may use the machine, too."""
    found, ends = list[float](), time.perf_counter() + _SECONDS
    while not found or time.perf_counter() < ends:
        began = time.process_time()
        results = compute(loaded, batch)
        found.append(time.process_time() - began)
        assert not isinstance(results, EngineError), results
    return 1000 * min(found)


def measure_batches(report: Report, engine: str, folder: Path, ranks: list[int], arguments: argparse.Namespace) -> None:
    """Each batch with each kind of adapter, in turn."""
    base, all_ranks = folder / "model", [*ranks, *[_MIXED_RANK] * _NUM_MIXED]
    adapters = {f"a{place}": folder / f"rank {rank}, {place}" for place, rank in enumerate(all_ranks)}
    for place, rank in enumerate(all_ranks):
        if not adapters[f"a{place}"].exists():
            save_adapter(base, adapters[f"a{place}"], rank, arguments.layers)
    bare, loaded = (load(engine, base, chosen, arguments.dtype) for chosen in ({}, adapters))
    for words, seqlens in _BATCHES.items():
        variants = {_ALONE: (bare, batch_of(seqlens, [])), _UNUSED: (loaded, batch_of(seqlens, []))}
        for number, rank in enumerate(ranks, start=1):
            variants[f"rank {rank}"] = (loaded, batch_of(seqlens, [number] * len(seqlens)))
        if len(seqlens) > 1:
            mixed = [len(ranks) + 1 + place % _NUM_MIXED for place in range(len(seqlens))]
            variants[f"{_NUM_MIXED} adapters of rank {_MIXED_RANK}"] = (loaded, batch_of(seqlens, mixed))
        found: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(arguments.rounds):
            for name, (one, batch) in list(variants.items())[:: 1 if number % 2 else -1]:
                found[name].append(least_ms(one, batch))
        least = {name: min(each) for name, each in found.items()}
        for name, each in found.items():
            report.row(
                {
                    "engine": engine,
                    "batch": words,
                    "adapters": name,
                    "ms": f"{least[name]:.2f}",
                    "to none loaded": f"{least[name] / least[_ALONE]:.3f}",
                    "median round": f"{median(a / b for a, b in zip(each, found[_ALONE], strict=True)):.3f}",
                },
                {"engine": engine, "batch": words, "adapters": name, "ms": each},
            )
    bare.close()
    loaded.close()


def start(engine: str, base: Path, adapters: list[Path], dtype: str) -> dict[str, float]:
    """In a process of its own: seconds of loading, and MB after it."""
    command = [sys.executable, "-m", "benchmarks.adapters", "--start", engine, dtype, str(base), *map(str, adapters)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return {name: float(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


def start_here(engine: str, dtype: str, base: str, *adapters: str) -> None:
    """What `start` runs. A batch with an adapter is computed before memory is read."""
    registry.import_early(engine)
    began, worked = time.perf_counter(), time.process_time()
    loaded = load(engine, Path(base), {f"a{n}": Path(folder) for n, folder in enumerate(adapters)}, dtype)
    took = {"seconds": time.perf_counter() - began, "CPU seconds": time.process_time() - worked}
    for number in range(1 + len(adapters)):
        results = compute(loaded, batch_of([16], [number] if adapters else []))
        assert not isinstance(results, EngineError), results
    print(json.dumps({**took, "MB": tree_pss_mb(os.getpid())}), flush=True)
    os._exit(0)  # an engine's threads may outlive it


def measure_starts(report: Report, engine: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Without adapters and with many, in turn."""
    base = folder / "model"
    many = [folder / f"many {number}" for number in range(_NUM_MANY)]
    for adapter in many:
        if not adapter.exists():
            save_adapter(base, adapter, _MIXED_RANK, arguments.layers)
    size = sum(file.stat().st_size for adapter in many for file in adapter.iterdir()) / 1e6
    found: dict[int, list[dict[str, float]]] = {0: [], _NUM_MANY: []}
    for _ in range(arguments.rounds):
        for number, each in found.items():
            each.append(start(engine, base, many[:number], arguments.dtype))
    least, worked = (
        {number: min(one[name] for one in each) for number, each in found.items()}
        for name in ("seconds", "CPU seconds")
    )
    held = {number: median(one["MB"] for one in each) for number, each in found.items()}
    for number, each in found.items():
        report.row(
            {
                "engine": engine,
                "adapters": number,
                "load seconds": f"{least[number]:.2f}",
                "more seconds": f"{least[number] - least[0]:.2f}",
                "more CPU seconds": f"{worked[number] - worked[0]:.2f}",
                "MB": f"{held[number]:.0f}",
                "more MB": f"{held[number] - held[0]:.0f}",
                "MB of their files": f"{size if number else 0:.0f}",
                "times their files": f"{(held[number] - held[0]) / size:.2f}" if number else "",
            },
            {"engine": engine, "adapters": number, "starts": each},
        )


def main() -> None:
    if sys.argv[1:2] == ["--start"]:
        start_here(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["transformers", "openvino"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[8, 16, 64])
    parser.add_argument("--layers", type=int, default=_CONFIG.num_hidden_layers)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-starts", action="store_true")
    arguments = parse(parser)
    arguments.rounds = 1 if arguments.quick else arguments.rounds
    report = Report(
        "adapters", f"Adapters beside BERT-base, {arguments.dtype}, on a CPU", packages=(*PACKAGES, "openvino")
    )
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        save_model(folder / "model", arguments.layers)
        report.table("A batch, one thread")
        for engine in arguments.engines:
            measure_batches(report, engine, folder, arguments.ranks, arguments)
        if not arguments.no_starts:
            report.table(f"Starts with {_NUM_MANY} adapters of rank {_MIXED_RANK}")
            for engine in arguments.engines:
                measure_starts(report, engine, folder, arguments)
    report.note(
        f"ms: CPU time of the quickest batch of all rounds, of {_SECONDS:g} s for each kind of adapter in each round."
    )
    report.note(
        f"To none loaded: against the same model without any adapter ({_ALONE}); {_UNUSED}: the model has some."
    )
    report.note("Median round: the same ratio in each round, of which the median.")
    report.note("Seconds: the quickest start, libraries imported before. Others use the machine, too, but no CPU time.")
    report.note("MB = 1e6 bytes of PSS, the median.")
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()
