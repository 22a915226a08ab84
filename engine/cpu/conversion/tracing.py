"""Settings of transformers and torch for tracing a model: an attention mask that can be traced, and no log lines.

Shapes: B sequences, S tokens of the longest.
"""

import contextlib
import io
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, bidirectional_mask_function, sdpa_mask
from transformers.utils import logging

from engine.transformers.visibility import visibility_of

# transformers looks for "flash", "sdpa", "flex_attention" and "paged|" in names, and then takes other paths.
TRACED = "embedline_traced"
TRACED_WITH_HIDDEN = "embedline_traced_with_hidden"  # for models with tokens that the others do not attend to


def register() -> None:
    """Register both with transformers. It may be called more than once."""
    AttentionInterface.register(TRACED, sdpa_attention_forward)
    AttentionMaskInterface.register(TRACED, traceable_mask)
    AttentionInterface.register(TRACED_WITH_HIDDEN, _attention_with_hidden)
    AttentionMaskInterface.register(TRACED_WITH_HIDDEN, _mask_with_hidden)


def traceable_mask(**arguments: Any) -> Tensor | None:
    """transformers' own mask, bool [B, 1, S, S], changed so that executors give the same as torch.

    Where padding alone is masked it is [B, 1, 1, S]: of the other form OpenVINO kept 784 MB after two texts of 8,192
    tokens (4 layers, 384 numbers a row), of this one 564 MB.

    With a sliding window some padding tokens attend to nothing. torch gives zeros for them, executors NaN, which
    spreads. So here they attend to everything, which is harmless, since nothing attends to them. vmap can't be traced
    and is replaced by broadcast indices; if a model needs more, the self-test finds out.
    """
    function, is_token = arguments["mask_function"], arguments["attention_mask"]  # [B, S]
    if function is bidirectional_mask_function and is_token is not None:
        return is_token[:, None, None, :].bool()  # type: ignore[no-any-return]
    mask = _mask_with_hidden(**arguments)
    return None if mask is None else mask | ~mask.any(dim=-1, keepdim=True)


def _mask_with_hidden(**arguments: Any) -> Tensor | None:
    mask: Tensor | None = sdpa_mask(
        **{**arguments, "use_vmap": False, "mask_function": _without_left_padding(arguments)}
    )
    return mask


def _without_left_padding(arguments: Mapping[str, Any]) -> Callable[..., Tensor]:
    """The mask's rule. That of chunks counts the padding on the left, which is never there, by adding up booleans;
    OpenVINO keeps such sums in bytes, so texts of 256 tokens and more would get other chunks.
    """
    function: Callable[..., Tensor] = arguments["mask_function"]
    seen = visibility_of(function, arguments.get("local_size"), arguments["device"])
    if isinstance(seen, str) or seen.chunk is None:
        return function
    return lambda _batch, _head, query, key: seen.visible(query, key)


def _attention_with_hidden(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **others: Any
) -> tuple[Tensor, Tensor | None]:
    """transformers' own, with torch's zeros for a token that attends to nothing: hidden tokens have rows, too."""
    if attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, None, **others)
    sees = attention_mask.any(dim=-1, keepdim=True)  # [B, 1, S, 1]
    rows, scores = sdpa_attention_forward(module, query, key, value, attention_mask | ~sees, **others)
    return rows * sees.transpose(1, 2), scores  # [B, S, heads, D of a head]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the warnings and prints of tracing out of the log, since the self-test decides; torch uses one thread.

    torch computes little here, and several threads are slow beside another busy process: 8 s against 0.2 s.
    """
    verbosity, num_threads = logging.get_verbosity(), torch.get_num_threads()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(), torch.inference_mode(), _nothing_printed():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        torch.set_num_threads(num_threads)


@contextlib.contextmanager
def _nothing_printed() -> Iterator[None]:
    """Discard standard output: an export that fails prints its whole graph, from C++."""
    with contextlib.redirect_stdout(io.StringIO()), open(os.devnull, "wb") as nowhere:
        kept = os.dup(1)
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)
