"""Shapes that graphs are recorded for, and how a batch is padded to one. Recording is only acted out.

Shapes: B sequences, T tokens; a key is (B, T, tokens of the longest sequence).
"""

import bisect
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorrt_llm.stand_in.interface import AttentionMetadata

Key = tuple[int, int, int]
_aten = torch.ops.aten
_READS_BACK = (
    _aten._local_scalar_dense.default,
    _aten.item.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
)


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails of what a graph can't hold: numbers that are read back, and shapes that depend on them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS_BACK:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        return func(*args, **(kwargs or {}))


class EncoderCUDAGraphRunner:
    def __init__(
        self, batch_sizes: list[int], num_tokens: list[int], seq_lens: list[int], *, padding_enabled: bool
    ) -> None:
        self.enabled = bool(num_tokens and seq_lens)
        self.padding_enabled = padding_enabled
        self.supported_batch_sizes = sorted(batch_sizes)
        self.supported_num_tokens = sorted(num_tokens)
        self.supported_seq_lens = sorted(seq_lens)
        self.graphs: dict[Key, AttentionMetadata] = {}
        self.num_replays = 0

    def capture_keys(self) -> Iterator[Key]:
        for batch_size in reversed(self.supported_batch_sizes):
            for i, seq_len in reversed(list(enumerate(self.supported_seq_lens))):
                shorter = self.supported_seq_lens[i - 1] if i else 0
                for j, num_tokens in reversed(list(enumerate(self.supported_num_tokens))):
                    fewer = self.supported_num_tokens[j - 1] if j else 0
                    most = batch_size * seq_len
                    if num_tokens >= shorter + batch_size and fewer < most and seq_len <= num_tokens <= most:
                        yield batch_size, num_tokens, seq_len

    def capture(self, keys: Iterator[Key], forward: Callable[[dict[str, Any]], Any]) -> None:
        for batch_size, num_tokens, seq_len in keys:
            short = batch_size - 1
            longest = min(seq_len, num_tokens - short)
            rest = num_tokens - longest
            lengths = [longest, *(rest // short + (i < rest % short) for i in range(short))]
            metadata = AttentionMetadata(max_num_requests=batch_size, max_num_tokens=num_tokens)
            self.graphs[batch_size, num_tokens, seq_len] = metadata
            inputs = self.static_inputs([1] * sum(lengths), lengths, num_tokens, metadata)
            forward(inputs)  # a real one warms up before it records
            with Recording():  # type: ignore[no-untyped-call]
                forward(inputs)

    @contextlib.contextmanager
    def pad_batch(self, inputs: dict[str, Any], batch_size: int) -> Iterator[dict[str, Any]]:
        """Sequences of one token are put at the end."""
        padded = _round_up(batch_size, self.supported_batch_sizes) if self.enabled and self.padding_enabled else 0
        padding = padded - batch_size
        if padding <= 0 or len(inputs["input_ids"]) + padding > self.supported_num_tokens[-1]:
            yield inputs
            return
        yield {**inputs, "seq_lens": [*inputs["seq_lens"], *([1] * padding)]}

    def maybe_get_cuda_graph(self, inputs: dict[str, Any]) -> tuple[AttentionMetadata | None, Key | None]:
        """None where the batch runs without one."""
        seq_lens = inputs["seq_lens"]
        if not self.enabled or len(seq_lens) not in self.supported_batch_sizes:
            return None, None
        key = self._key(len(seq_lens), sum(seq_lens), max(seq_lens))
        if not self.padding_enabled and key != (len(seq_lens), sum(seq_lens), max(seq_lens)):
            return None, None
        return (self.graphs[key], key) if key in self.graphs else (None, None)

    def static_inputs(
        self, input_ids: list[int], seq_lens: list[int], num_tokens: int, metadata: AttentionMetadata
    ) -> dict[str, Any]:
        """What a graph reads: ids and positions are padded with zeros, to as many tokens as it was recorded for."""
        ids = torch.zeros(num_tokens, dtype=torch.int32)
        ids[: len(input_ids)] = torch.tensor(input_ids, dtype=torch.int32)
        positions = torch.zeros(1, num_tokens, dtype=torch.int32)
        positions[0, : sum(seq_lens)] = torch.cat([torch.arange(length, dtype=torch.int32) for length in seq_lens])
        metadata.seq_lens = torch.tensor(seq_lens, dtype=torch.int32)
        return {"input_ids": ids, "position_ids": positions, "seq_lens": seq_lens, "attn_metadata": metadata}

    def _key(self, batch_size: int, num_tokens: int, longest: int) -> Key:
        i = bisect.bisect_left(self.supported_num_tokens, num_tokens)
        j = bisect.bisect_left(self.supported_seq_lens, longest)
        while i < len(self.supported_num_tokens) and j < len(self.supported_seq_lens):
            tokens, length = self.supported_num_tokens[i], self.supported_seq_lens[j]
            if tokens > batch_size * length:
                j += 1
            elif length > tokens:
                i += 1
            else:
                return batch_size, tokens, length
        return batch_size, 0, 0


def _round_up(value: int, supported: list[int]) -> int:
    index = bisect.bisect_left(supported, value)
    return supported[index] if index < len(supported) else 0
