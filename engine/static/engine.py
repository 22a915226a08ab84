"""The `static` engine: a text's row is the mean of its tokens' rows in a table. CPU only, with numpy alone.

A batch takes milliseconds, so the thread that collects it also computes it.

Shapes: T tokens of a batch, B sequences, D numbers a row.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from engine.blocking import BlockingEngine
from engine.messages import LoadOptions
from engine.model.model_folder import ModelFolder
from engine.model.with_options import read_with
from engine.rows.modules_numpy import RowModules, load_modules
from engine.static.table import Table, read_table
from engine.types import (
    MAX_NUM_SEQS,
    Batch,
    EngineLimits,
    ModelError,
    ModelInfo,
    OnStage,
    OutputKind,
    Results,
    Rows,
    untold,
)

_DEPTH = 2
_MAX_NUM_TOKENS = 16_384  # of a batch, by default
_DTYPES = ("auto", "float32")


class StaticEngine(BlockingEngine):
    """Gives pooled rows, before a final Normalize, and token rows."""

    def __init__(self, table: Table, modules: RowModules, *, info: ModelInfo, limits: EngineLimits) -> None:
        super().__init__(info=info, limits=limits)
        self._table = table
        self._modules = modules

    def _compute(self, batch: Batch) -> Results:
        assert batch.outputs in self.info.outputs, batch.outputs
        token_rows = self._table(batch.token_ids)
        results: Results = {}
        if OutputKind.POOLED in batch.outputs:
            results[OutputKind.POOLED] = Rows(self._modules(_means(token_rows, batch.cu_seqlens)))
        if OutputKind.TOKENS in batch.outputs:
            results[OutputKind.TOKENS] = Rows(token_rows, batch.cu_seqlens)
        return results


def _means(token_rows: NDArray[np.float32], cu_seqlens: NDArray[np.int32]) -> NDArray[np.float32]:
    """[B, D] of token rows [T, D] and bounds [B + 1]; zeros for a text without tokens, as in sentence-transformers.

    Sums in float64 are exact in float32 for any length, so a row does not depend on its batch.
    """
    seqlens = np.diff(cu_seqlens)
    has_tokens = seqlens > 0
    means = np.zeros((len(seqlens), token_rows.shape[1]), np.float32)
    if has_tokens.any():
        sums = np.add.reduceat(token_rows, cu_seqlens[:-1][has_tokens], axis=0, dtype=np.float64)
        means[has_tokens] = sums / seqlens[has_tokens, None]
    return means


def load(*, name: str, reason: str, options: LoadOptions, on_stage: OnStage = untold) -> StaticEngine:
    """Load an engine. It runs on the CPU, whatever device the options name. Raises ModelError."""
    folder = read_with(options)
    _check(folder, options.dtype)
    on_stage("weights")
    table, modules = read_table(folder.weights_folder / "model.safetensors"), load_modules(folder.path, folder.steps)
    limits = EngineLimits(
        max_num_tokens=max(options.max_num_tokens or _MAX_NUM_TOKENS, folder.max_seqlen),
        max_num_seqs=options.max_num_seqs or MAX_NUM_SEQS,
        max_seqlen=folder.max_seqlen,
        depth=_DEPTH,
    )
    return StaticEngine(table, modules, info=_info(folder, table, name=name, reason=reason), limits=limits)


def _check(folder: ModelFolder, dtype: str) -> None:
    """Raises ModelError if this engine can't serve the model."""
    if not folder.is_static:
        raise ModelError("the static engine serves static embeddings only; this model has a network")
    if folder.poolings != ("mean",):
        raise ModelError(f"--pooling {folder.pooling} is not for static embeddings; their rows are always means")
    if dtype not in _DTYPES:
        raise ModelError(f"--dtype {dtype} is not one of {', '.join(_DTYPES)}")


def _info(folder: ModelFolder, table: Table, *, name: str, reason: str) -> ModelInfo:
    note = "static: each token has a row in a table; computed on the CPU, whatever the device"
    info = folder.info(name=name, engine="static", reason=reason, dtype="float32", device="cpu", notes=(note,))
    return dataclasses.replace(info, vocab_size=table.num_tokens, token_dimensions=table.dimensions)
