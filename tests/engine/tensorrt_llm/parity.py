"""Whether an engine's rows are transformers', alone and in batches."""

import numpy as np

from engine.tensorrt_llm.engine import TensorrtLlmEngine
from tests.engine.engines import difference
from tests.engine.tensorrt_llm.models import Model
from tests.engine.tensorrt_llm.stand_in import load, rows
from tests.engine.tiny_models import arbitrary

SEQLENS = (5, 17, 1, 30, 9, 9, 13, 1)
TOLERANCE = 1e-5  # relative to the largest number, in float32


def distance(model: Model) -> float:
    """How far the rows of a model are from what is expected, at worst."""
    return distance_of(load(model.folder, **model.options), model)


def distance_of(engine: TensorrtLlmEngine, model: Model) -> float:
    sequences = arbitrary(SEQLENS)
    expected = model.expected(sequences)
    together = rows(engine, sequences)
    backwards = rows(engine, sequences[::-1])[::-1]
    alone = np.concatenate([rows(engine, [sequence]) for sequence in sequences])
    return max(difference(np.ascontiguousarray(each), expected) for each in (together, backwards, alone))
