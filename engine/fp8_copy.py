"""The block-FP8 copy of a model that the tensorrt-llm engine loads with --quantization fp8.

Engines import no tools, and engine/tools knows no engine. So engine.worker and `embedline verify` call this before they
load an engine. A module of its own, because nothing else in engine/ may import tools.
"""

import dataclasses

from engine.machine.failures import one_line
from engine.messages import LoadOptions
from engine.types import ModelError

_ENGINE = "tensorrt-llm"  # the others quantize the layers that they have loaded


def with_copy(engine: str, options: LoadOptions) -> LoadOptions:
    """The options, with the folder of the copy as `weights` if the engine needs one. Takes minutes the first time.

    The copy is not removed while this process lives. Raises ModelError with one line if the engine can't serve the
    model, or the copy can't be made.
    """
    if engine != _ENGINE or options.quantization != "fp8":
        return options
    try:
        return _with_copy(options)
    except ModelError:
        raise
    except Exception as error:  # of a library, which would end the process with a traceback
        raise ModelError(f"the FP8 copy of the model can't be made: {one_line(error)}") from error


def _with_copy(options: LoadOptions) -> LoadOptions:
    from engine.tensorrt_llm import choices

    folder = choices.weights_to_quantize(options)
    if folder is None:
        return options
    from engine.tools.quantize.cached import block_fp8  # imports torch

    return dataclasses.replace(options, weights=str(block_fp8(folder, cache_dir=options.cache_dir)))
