"""One job in a process of its own: a GPU that is lost, or memory that is not given back, ends with it.

    python -m tests.tensorrt_llm_gpu.child JOB.json WORK OUT

Writes OUT/outcome.json and OUT/rows.npy.
"""

import dataclasses
import gc
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu import random_models, shapes
from engine.fused.quantization import gate_texts
from engine.machine import cuda_driver
from engine.machine.cuda_driver import Gpu
from engine.messages import LoadOptions
from engine.model import model_folder
from engine.model.model_folder import ModelFolder
from engine.selftest import sample_ids, selfcheck
from engine.selftest.sample_ids import Sequences
from engine.tensorrt_llm import engine as tensorrt_llm
from engine.tensorrt_llm.planning.plan import KNOWN_CLASSES
from engine.types import Engine, EngineError
from tests.engine.engines import changed, rows_of
from tests.tensorrt_llm_gpu import reference, small_models
from tests.tensorrt_llm_gpu.job import Job, Outcome, Shape, Speed

_WARM_UPS, _TIMES, _TIMES_OF_A_TOY = 3, 20, 2
_SHAPES = {shape.name: shape for shape in shapes.MODELS}
_TOKENS_OF_A_TOY = 512  # of a batch
_NO_GPU = Gpu(0, "no GPU", (9, 0), 80 << 30)  # for a library that only stands in for the real one


def outcome_of(job: Job, work: Path) -> Outcome:
    """`work`: a folder for models and caches that jobs share. Never raises."""
    try:
        return _by_engine(job, work) if job.by == "engine" else _by_transformers(job, work)
    except Exception as error:
        return Outcome(failure=" ".join(f"{type(error).__name__}: {error}".split())[:500])
    finally:
        gc.collect()


def _by_transformers(job: Job, work: Path) -> Outcome:
    folder = model_folder.read(_folder_of(job, work), known_classes=KNOWN_CLASSES)
    dtype = getattr(torch, job.options["dtype"])
    rows = reference.rows_of(folder, _sequences(job, folder), dtype=dtype, device=_device())
    return Outcome(rows=rows)


def _by_engine(job: Job, work: Path) -> Outcome:
    path = _folder_of(job, work)
    engine = tensorrt_llm.load(name="m", reason="", options=_options(job, path, work))
    folder = model_folder.read(path, known_classes=KNOWN_CLASSES)
    sequences = _sequences(job, folder)
    if job.are_alone:
        rows = np.concatenate([rows_of(engine, [sequence]) for sequence in sequences])
    else:
        rows = rows_of(engine, sequences)
    speeds = tuple(_speed(engine, folder, shape) for shape in job.shapes)
    engine.close()
    return Outcome(rows=rows, max_num_tokens=engine.limits.max_num_tokens, speeds=speeds, notes=engine.info.notes)


def _options(job: Job, path: Path, work: Path) -> LoadOptions:
    found = cuda_driver.find().gpus
    fixed = LoadOptions(
        path=str(path),
        device="cuda:0",
        gpu=found[0] if found else _NO_GPU,
        max_num_tokens=None if found else _TOKENS_OF_A_TOY,
        cache_dir=str(work / "cache"),
    )
    return changed(fixed, **job.options)


def _folder_of(job: Job, work: Path) -> Path:
    if job.model in small_models.MODELS:
        return small_models.save(job.model, work / "models" / job.model.replace(", ", "-").replace(" ", "-"))
    if job.model not in _SHAPES:
        return Path(job.model)
    folder = work / "models" / job.model
    if not (folder / "modules.json").is_file():  # which is written last
        random_models.save(random_models.build(_SHAPES[job.model], torch.device(_device()), is_tame=True), folder)
    return folder


def _sequences(job: Job, folder: ModelFolder) -> Sequences:
    if not job.seqlens:
        return gate_texts.fixed(folder).sequences
    return sample_ids.arbitrary(folder, [min(seqlen, folder.max_seqlen) for seqlen in job.seqlens])


def _speed(engine: Engine, folder: ModelFolder, shape: Shape) -> Speed:
    """Submitted and collected again, so with what Python and the copies cost; no server is about."""
    sequences = sample_ids.arbitrary(folder, [shape.seqlen] * shape.num_seqs)
    times = _TIMES if torch.cuda.is_available() else _TIMES_OF_A_TOY
    seconds = [_seconds(engine, sequences) for _ in range(_WARM_UPS + times)][_WARM_UPS:]
    median = statistics.median(seconds)
    return Speed(str(shape), 1e3 * median, shape.num_seqs * shape.seqlen / median)


def _seconds(engine: Engine, sequences: Sequences) -> float:
    begun = time.perf_counter()
    answer = selfcheck.answered(engine, sequences)
    if isinstance(answer, EngineError):
        raise answer
    return time.perf_counter() - begun


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def job_from(text: str) -> Job:
    """As `dataclasses.asdict` wrote it."""
    fields = json.loads(text)
    shapes_asked = tuple(Shape(**shape) for shape in fields.pop("shapes"))
    return Job(**{**fields, "seqlens": tuple(fields.pop("seqlens")), "shapes": shapes_asked})


def write(outcome: Outcome, out: Path) -> None:
    """See `read`."""
    if outcome.rows is not None:
        np.save(out / "rows.npy", outcome.rows, allow_pickle=False)
    facts = dataclasses.asdict(dataclasses.replace(outcome, rows=None))
    (out / "outcome.json").write_text(json.dumps(facts))


def read(out: Path) -> Outcome:
    """What a child wrote."""
    facts = json.loads((out / "outcome.json").read_text())
    rows = np.load(out / "rows.npy", allow_pickle=False) if (out / "rows.npy").is_file() else None
    speeds = tuple(Speed(**speed) for speed in facts.pop("speeds"))
    return Outcome(**{**facts, "rows": rows, "speeds": speeds, "notes": tuple(facts.pop("notes"))})


if __name__ == "__main__":
    asked, shared, where = map(Path, sys.argv[1:])
    write(outcome_of(job_from(asked.read_text()), shared), where)
