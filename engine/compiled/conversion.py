"""A transformers model as executors convert it: padded ids in, token rows out. Knows torch, and no executor.

Shapes: B sequences, S tokens of the longest, D numbers a row.
"""

import contextlib
import inspect
import io
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.utils import logging

from engine.compiled.executor import ATTENTION_MASK, INPUT_IDS, TOKEN_TYPE_IDS

# transformers looks for "flash", "sdpa", "flex_attention" and "paged|" in names, and then takes other paths.
TRACED = "embedline_traced"

_EXAMPLE_SHAPE = (2, 7)  # with padding in it: where there is none, some models leave out their mask


class TokenRows(nn.Module):
    """The last hidden states [B, S, D]."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        if model.config._attn_implementation == "sdpa":
            _register()
            model.set_attn_implementation(TRACED)
        arguments = inspect.signature(model.forward).parameters
        # Without a table for them, such as GPT-2, a model would take zeros for tokens and add the row of token 0.
        self.takes_types = TOKEN_TYPE_IDS in arguments and bool(getattr(model.config, "type_vocab_size", 0))
        self._fixed = {"use_cache": False} if "use_cache" in arguments else {}

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """All int64 [B, S]."""
        types = {TOKEN_TYPE_IDS: token_type_ids} if self.takes_types else {}
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, **types, **self._fixed)
        rows: Tensor = output.last_hidden_state
        return rows

    def example(self) -> dict[str, Tensor]:
        """Inputs to trace it with, by name."""
        mask = torch.ones(_EXAMPLE_SHAPE, dtype=torch.int64)
        mask[1, 5:] = 0
        vocab_size = self.model.config.get_text_config().vocab_size
        ids = torch.arange(mask.numel()).reshape(_EXAMPLE_SHAPE) % vocab_size
        types = {TOKEN_TYPE_IDS: torch.zeros_like(mask)} if self.takes_types else {}
        return {INPUT_IDS: ids, ATTENTION_MASK: mask, **types}


def _register() -> None:
    """Make TRACED known to transformers; more than once does no harm."""
    AttentionInterface.register(TRACED, sdpa_attention_forward)
    AttentionMaskInterface.register(TRACED, traceable_mask)


def traceable_mask(**arguments: Any) -> Tensor | None:
    """transformers' own mask, bool [B, 1, S, S], changed where an executor would not do with it what torch does.

    With a sliding window some tokens of the padding see nothing. torch gives zeros for them, others NaN, which then
    spreads; here they see everything, for nobody sees them. And vmap can't be traced; where indices that broadcast
    are not good enough in its place, the self-test says so.
    """
    mask: Tensor | None = sdpa_mask(**{**arguments, "use_vmap": False})
    return None if mask is None else mask | ~mask.any(dim=-1, keepdim=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what tracing warns of and prints out of the log, and torch on one thread. The self-test says what matters.

    What is computed with torch is little, and a team of threads is slow beside any other process: 8 s against 0.2.
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
    """Standard output goes nowhere: an export that fails writes its whole graph there, from C++."""
    with contextlib.redirect_stdout(io.StringIO()), open(os.devnull, "wb") as nowhere:
        kept = os.dup(1)
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)
