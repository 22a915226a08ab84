"""The `static` engine: a text's row is the mean of its tokens' rows in a table. CPU only, with numpy alone.

A batch takes milliseconds, so the thread that collects it also computes it. The table's safetensors file is mapped into
memory: it is read as needed, and all processes share it.

Shapes: T tokens of a batch, B sequences, V tokens of the vocabulary, R rows of the table, D numbers a row.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.blocking import BlockingEngine
from engine.messages import LoadOptions
from engine.model.model_folder import ModelFolder, read_with
from engine.model.weights import Header, as_float32, header_of, mapped
from engine.rows.with_numpy import RowModules, load_modules
from engine.types import Batch, EngineLimits, ModelError, ModelInfo, OnStage, OutputKind, Results, Rows, untold

_TABLE = ("embedding.weight", "embeddings")  # the names of sentence-transformers and model2vec
_ROW_OF_TOKEN, _WEIGHT_OF_TOKEN = "mapping", "weights"  # model2vec's, if tokens share rows
_DEPTH = 2
_DTYPES = ("auto", "float32")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of embeddings. Several threads may use it at the same time."""

    rows: NDArray[Any]  # [R, D]
    row_of_token: NDArray[np.int64] | None  # [V]; None = each token has its own row
    weight_of_token: NDArray[np.float32] | None  # [V]; None = 1

    @property
    def num_tokens(self) -> int:
        """V."""
        return len(self.rows) if self.row_of_token is None else len(self.row_of_token)

    @property
    def dimensions(self) -> int:
        """D."""
        return int(self.rows.shape[1])

    def __call__(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """Rows [T, D] of ids [T], each 0 <= id < V."""
        rows = as_float32(self.rows[token_ids if self.row_of_token is None else self.row_of_token[token_ids]])
        return rows if self.weight_of_token is None else rows * self.weight_of_token[token_ids, None]


def read_table(file: Path) -> Table:
    """Map the table of a file. Raises ModelError if there is none."""
    try:
        header = header_of(file)
        name = next((name for name in _TABLE if name in header.tensors), None)
        if name is None:
            raise ModelError(f"{file} has no table of embeddings ({' or '.join(_TABLE)})")
        rows = mapped(file, header, name)
        row_of_token = _optional(file, header, _ROW_OF_TOKEN)
        weights = _optional(file, header, _WEIGHT_OF_TOKEN)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise ModelError(f"{file} can't be read as a safetensors file") from error
    table = Table(
        rows,
        None if row_of_token is None else row_of_token.astype(np.int64),
        None if weights is None else as_float32(weights),
    )
    _check_table(file, table)
    return table


def _check_table(file: Path, table: Table) -> None:
    if table.rows.ndim != 2 or not table.rows.size:
        raise ModelError(f"{file}: the table of embeddings has the shape {table.rows.shape}; it needs two dimensions")
    mapping, weights = table.row_of_token, table.weight_of_token
    if mapping is not None and not _are_rows(mapping, len(table.rows)):
        raise ModelError(f"{file}: {_ROW_OF_TOKEN!r} does not name a row of the table for each token")
    if weights is not None and weights.shape != (table.num_tokens,):
        raise ModelError(f"{file}: {_WEIGHT_OF_TOKEN!r} is {weights.shape}, not {(table.num_tokens,)}")


def _are_rows(mapping: NDArray[np.int64], num_rows: int) -> bool:
    return mapping.ndim == 1 and mapping.size > 0 and mapping.min() >= 0 and mapping.max() < num_rows


def _optional(file: Path, header: Header, name: str) -> NDArray[Any] | None:
    return mapped(file, header, name) if name in header.tensors else None


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
    limits = EngineLimits(**options.batch_limits(folder.max_seqlen), depth=_DEPTH)
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
