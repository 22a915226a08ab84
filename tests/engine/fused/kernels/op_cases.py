"""Every kernel but attention at sizes of real models, to be compiled (see compile_kernels)."""

from functools import partial

import torch
from torch import Tensor

from engine.fused.kernels.activation import activate, quantize
from engine.fused.kernels.embedding_pooling import embed, gather, pool
from engine.fused.kernels.norm import add_norm
from engine.fused.kernels.rotary import rotate
from engine.fused.kernels.vocabulary import vocabulary_weights
from engine.fused.model.ops import TILE_FIELDS, EmbeddingTables, Heads, Inputs, Norm, NormOutputs, Tiles, WordScores
from tests.engine.fused.kernels.compile_kernels import Case

NUM_ROWS = 32
FP8 = 89  # the first compute capability with float8


def rows(width: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty((NUM_ROWS, width), dtype=dtype)


# as the families ask: norms behind a sum need no total, those before one no plain rows beside quantized ones
PLAIN = {"layer": NormOutputs.ROWS, "rms": NormOutputs.RESIDUAL | NormOutputs.ROWS}
WITH_FP8 = {"layer": NormOutputs.ROWS | NormOutputs.QUANTIZED, "rms": NormOutputs.RESIDUAL | NormOutputs.QUANTIZED}


def ints(number: int) -> Tensor:
    return torch.zeros(number, dtype=torch.int32)


def norm(width: int, *, kind: str = "rms") -> Norm:
    weight = torch.empty(width)
    return Norm(kind, weight, weight if kind == "layer" else None, 1e-6)


def launch_add_norm(width: int, kind: str, *, outputs: NormOutputs, is_sandwich: bool = False) -> None:
    hidden_norm = norm(width) if is_sandwich else None
    one = rows(width)
    add_norm(one, one, norm(width, kind=kind), hidden_norm=hidden_norm, outputs=outputs)


def launch_activate(width: int, activation: str, *, is_gated: bool, is_quantized: bool) -> None:
    activate(rows(2 * width if is_gated else width), activation, is_gated=is_gated, is_quantized=is_quantized)


def launch_rotate(num_query: int, num_key: int, dim: int, *, rotated: int, has_norms: bool) -> None:
    heads = Heads(num_query, num_key, dim, *((norm(dim),) * 2 if has_norms else (None, None)))
    rotate(rows((num_query + 2 * num_key) * dim), ints(NUM_ROWS), torch.empty(8192, rotated), heads)


def launch_quantize(width: int) -> None:
    quantize(rows(width))


def launch_embed(width: int, *, is_bert: bool) -> None:
    tiles = Tiles(ints(5).view(1, 5), 64)
    inputs = Inputs(*(ints(NUM_ROWS),) * 3, ints(3), ints(2), tiles, tiles)
    table = rows(width)
    embed(inputs, EmbeddingTables(table, table, table, 1.0) if is_bert else EmbeddingTables(table, None, None, 2.0))


def launch_pool(width: int) -> None:
    pool(rows(width), ints(65))


def launch_gather(width: int) -> None:
    """Keys and values out of rows that queries precede."""
    gather(rows(3 * width)[:, width:], ints(65))


def launch_vocabulary(width: int, block: int, dtype: torch.dtype = torch.bfloat16) -> None:
    """In several slices of words."""
    scores = WordScores(torch.empty((300, width), dtype=dtype), torch.empty(300), is_log_twice=False)
    tiles = Tiles(ints(TILE_FIELDS).view(1, TILE_FIELDS), block)
    vocabulary_weights(rows(width, dtype), scores, tiles, ints(3), max_maxima=1)


def launch_batches(width: int) -> None:
    """Batches of several shapes, whose ints lie anywhere in a block."""
    for num_rows, offset in ((1, 0), (16, 1), (33, 6)):
        batch, numbers, one = ints(64)[offset:], ints(num_rows), torch.empty(num_rows, width, dtype=torch.bfloat16)
        tiles = Tiles(ints(5).view(1, 5), 64)
        inputs = Inputs(*(batch[:num_rows],) * 3, numbers, numbers, tiles, tiles)
        embed(inputs, EmbeddingTables(one, one, one, 1.0))
        add_norm(one, one, norm(width), hidden_norm=None, outputs=NormOutputs.ROWS)
        activate(one, "silu", is_gated=False, is_quantized=False)
        rotate(one, batch[:num_rows], torch.empty(64, 64), Heads(8, 2, 64, None, None))
        pool(one, batch[: num_rows + 1])
        gather(one, batch[:num_rows])
        scores = WordScores(torch.empty(300, width, dtype=torch.bfloat16), None, is_log_twice=False)
        table = ints(64 * TILE_FIELDS)[offset : offset + num_rows * TILE_FIELDS].view(num_rows, TILE_FIELDS)
        vocabulary_weights(one, scores, Tiles(table, 64), batch[: num_rows + 1], max_maxima=256 * num_rows)


NORMS = [(384, "layer"), (768, "layer"), (1024, "layer"), (1024, "rms"), (12288, "rms")]
QUANTIZED_NORMS = [(1024, "layer"), (1024, "rms"), (2560, "rms"), (4096, "rms"), (12288, "rms")]
ACTIVATED = [(1536, "gelu", False), (3072, "relu", False), (3072, "silu", True), (1152, "gelu_tanh", True)]
QUANTIZED = [
    *((4096, "gelu", False), (16384, "gelu_tanh", True)),
    *((width, "silu", True) for width in (3072, 9728, 12288, 14336, 18944)),
]
CASES = [
    *(
        Case(f"add_norm {width} {kind}{name}", partial(launch_add_norm, width, kind, outputs=outputs[kind]), arch)
        for name, outputs, arch, norms in (("", PLAIN, 80, NORMS), (" fp8", WITH_FP8, FP8, QUANTIZED_NORMS))
        for width, kind in norms
    ),
    Case("add_norm 768 sandwich", partial(launch_add_norm, 768, "rms", outputs=PLAIN["rms"], is_sandwich=True)),
    *(
        Case(
            f"activate {width} {activation}{name}",
            partial(launch_activate, width, activation, is_gated=is_gated, is_quantized=bool(name)),
            arch,
        )
        for name, arch, activated in (("", 80, ACTIVATED), (" fp8", FP8, QUANTIZED))
        for width, activation, is_gated in activated
    ),
    *(Case(f"quantize {width}", partial(launch_quantize, width), FP8) for width in (1024, 4096)),
    Case("rotate 16 + 8 x 128 normed", partial(launch_rotate, 16, 8, 128, rotated=128, has_norms=True)),
    Case("rotate 12 + 12 x 64", partial(launch_rotate, 12, 12, 64, rotated=64, has_norms=False)),
    Case("rotate 3 + 1 x 256 normed", partial(launch_rotate, 3, 1, 256, rotated=256, has_norms=True)),
    Case("rotate 32 + 8 x 96 in part", partial(launch_rotate, 32, 8, 96, rotated=48, has_norms=True)),
    Case("embed 384", partial(launch_embed, 384, is_bert=True)),
    Case("embed 4096", partial(launch_embed, 4096, is_bert=False)),
    Case("pool 1024", partial(launch_pool, 1024)),
    Case("gather 1024", partial(launch_gather, 1024)),
    *(Case(f"vocabulary 768 of {block}", partial(launch_vocabulary, 768, block)) for block in (16, 32, 64, 128)),
    Case("vocabulary 80 of 128", partial(launch_vocabulary, 80, 128)),
    Case("vocabulary 1024 in float32", partial(launch_vocabulary, 1024, 16, torch.float32)),
    Case("once for all batches", partial(launch_batches, 896)),
]
ONE_OF_EACH = ("activate 3072 silu fp8", "activate 18944 silu fp8", "once for all batches")
