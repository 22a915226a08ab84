"""Masks, and what a batch looks like to attention. The places that upstream has it in import it from here."""

import itertools
from enum import Enum

import torch


class PredefinedAttentionMask(str, Enum):  # noqa: UP042 (as upstream has it)
    CAUSAL = "causal"
    FULL = "full"


class AttentionMetadata:
    """Of one batch at a time."""

    def __init__(self, *, max_num_requests: int, max_num_tokens: int) -> None:
        self.max_num_requests = max_num_requests
        self.max_num_tokens = max_num_tokens
        self.max_seq_len: int | None = None
        self.num_contexts = 0
        self.request_ids: list[int] = []
        self._seq_lens: torch.Tensor | None = None
        self._seq_lens_cuda: torch.Tensor | None = None

    @property
    def seq_lens(self) -> torch.Tensor | None:
        """int32 [B], on the host."""
        return self._seq_lens

    @seq_lens.setter
    def seq_lens(self, lengths: torch.Tensor) -> None:
        self._seq_lens = lengths
        self._seq_lens_cuda = lengths.clone()

    @property
    def seq_lens_cuda(self) -> torch.Tensor | None:
        """int32 [B], where the model is."""
        return self._seq_lens_cuda

    def prepare_encoder_only(self) -> None:
        assert self._seq_lens is not None

    def spans(self) -> list[tuple[int, int]]:
        """First token and the one after the last, of each sequence: what upstream's kernels make of the lengths."""
        assert self._seq_lens is not None
        ends = list(itertools.accumulate(self._seq_lens.tolist()))
        return list(zip([0, *ends], ends, strict=False))
