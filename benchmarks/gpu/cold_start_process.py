"""One fresh process: loads a model as an engine worker does, embeds one text, says how long each step took and what was
decided. Fails where FP8 was asked for and the quality gate left nothing of it.

Started by benchmarks.gpu.cold_starts with its options as JSON.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from engine import registry
from engine.messages import LoadOptions
from engine.types import Batch, EngineError, OutputKind

_NUM_TOKENS = 32


def main() -> None:
    asked = json.loads(sys.argv[1])
    began = time.perf_counter()
    import torch

    is_gpu = asked["device"] != "cpu"
    if is_gpu:
        torch.zeros(1, device=asked["device"])
    imported = time.perf_counter()
    options = LoadOptions(
        path=asked["path"],
        device=asked["device"],
        max_num_tokens=None if is_gpu else 256,
        max_num_seqs=1024 if is_gpu else 16,
        quantization=asked["quantization"],
        cache_dir=str(Path(asked["cache"], "weights")),
    )
    engine = registry.load("fused", name="m", reason="a benchmark", options=options)
    loaded = time.perf_counter()
    token_ids = np.arange(5, 5 + _NUM_TOKENS, dtype=np.int32)
    engine.submit(Batch("m", OutputKind.POOLED, token_ids, np.array([0, _NUM_TOKENS], np.int32)))
    _, results = engine.collect()
    if isinstance(results, EngineError):
        raise results
    assert np.isfinite(results[OutputKind.POOLED].values).all()
    ended = time.perf_counter()
    if asked["quantization"] == "fp8" and not engine.info.dtype.startswith("fp8"):
        raise RuntimeError("; ".join(engine.info.notes))
    steps = {"torch and CUDA": imported - began, "loading": loaded - imported, "embedding": ended - loaded}
    print(json.dumps({"steps": steps, "notes": engine.info.notes}), flush=True)
    engine.close()


if __name__ == "__main__":
    main()
