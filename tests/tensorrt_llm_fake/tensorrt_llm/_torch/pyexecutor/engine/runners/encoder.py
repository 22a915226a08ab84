"""Makes a batch's tensors, and runs the model on them."""

import logging
from typing import Any

import torch

from tensorrt_llm._torch.pyexecutor.cuda_graph_runner import EncoderCUDAGraphRunner
from tensorrt_llm.stand_in import faults
from tensorrt_llm.stand_in.interface import AttentionMetadata

logger = logging.getLogger("tensorrt_llm")


class EncoderRunner:
    def __init__(
        self, model: Any, graph_config: Any, *, max_batch_size: int, max_num_tokens: int, max_seq_len: int
    ) -> None:
        self._model = model
        self._limits = max_batch_size, max_num_tokens, max_seq_len
        self._metadata = AttentionMetadata(max_num_requests=max_batch_size, max_num_tokens=max_num_tokens)
        self._input_ids_cuda = torch.zeros(max_num_tokens, dtype=torch.int32)
        self._position_ids_cuda = torch.zeros(max_num_tokens, dtype=torch.int32)
        self.graphs = self._graphs(graph_config)

    def _graphs(self, config: Any) -> EncoderCUDAGraphRunner:
        if config is None:
            return EncoderCUDAGraphRunner([], [], [], padding_enabled=False)
        if not (config.num_tokens and config.seq_lens):
            logger.warning("num_tokens and seq_lens must both be set; the encoder stays eager.")
        wanted = (config.batch_sizes or [], config.num_tokens or [], config.seq_lens or [])
        within = [[size for size in sizes if size <= limit] for sizes, limit in zip(wanted, self._limits, strict=True)]
        return EncoderCUDAGraphRunner(*within, padding_enabled=config.enable_padding)

    @torch.inference_mode()
    def warmup(self) -> None:
        """The largest shape's running out of memory is only warned of."""
        for batch_size, num_tokens, seq_len in dict.fromkeys(((1, 1, 1), self._limits, (1, 2, 2))):
            lengths = _lengths(batch_size, num_tokens, seq_len)
            if sum(lengths) > int(faults().get("oom@tokens", num_tokens)):
                logger.warning("OOM during warmup with %d tokens; skipped.", sum(lengths))
                continue
            self.forward({"input_ids": [1] * sum(lengths), "seq_lens": lengths}, gather_context_logits=False)
        if self.graphs.enabled:
            self.graphs.capture(self.graphs.capture_keys(), lambda inputs: self._call(inputs, False))

    @torch.inference_mode()
    def forward(self, inputs: dict[str, Any], *, gather_context_logits: bool) -> dict[str, Any]:
        """inputs: input_ids and seq_lens, lists, and what the model takes beside them."""
        others = {name: value for name, value in inputs.items() if name not in ("input_ids", "seq_lens")}
        if others and self.graphs.enabled:
            raise ValueError(f"Model inputs {sorted(others)} are not declared in extra_model_inputs.")
        batch_size = len(inputs["seq_lens"])
        with self.graphs.pad_batch(inputs, batch_size) as padded:
            metadata, key = self.graphs.maybe_get_cuda_graph(padded)
            if metadata is not None and key is not None:
                self.graphs.num_replays += 1
                static = self.graphs.static_inputs(padded["input_ids"], padded["seq_lens"], key[1], metadata)
                with torch.inference_mode():
                    outputs = self._call(static, gather_context_logits)
                return {"logits": outputs["logits"][:batch_size].clone()}
        return self._call({**others, **self._eager(inputs)}, gather_context_logits)

    def _eager(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """In buffers that the next batch overwrites."""
        num_tokens, lengths = len(inputs["input_ids"]), inputs["seq_lens"]
        self._input_ids_cuda[:num_tokens] = torch.tensor(inputs["input_ids"], dtype=torch.int32)
        self._position_ids_cuda[:num_tokens] = torch.cat([torch.arange(each, dtype=torch.int32) for each in lengths])
        self._metadata.seq_lens = torch.tensor(lengths, dtype=torch.int32)
        self._metadata.num_contexts = len(lengths)
        self._metadata.max_seq_len = self._limits[2]
        self._metadata.request_ids = list(range(len(lengths)))
        self._metadata.prepare_encoder_only()
        return {
            "seq_lens": lengths,  # which a model may not expect
            "attn_metadata": self._metadata,
            "input_ids": self._input_ids_cuda[:num_tokens],
            "position_ids": self._position_ids_cuda[:num_tokens].unsqueeze(0),
        }

    def _call(self, inputs: dict[str, Any], gather_context_logits: bool) -> dict[str, Any]:
        outputs = self._model.forward(**inputs, return_context_logits=gather_context_logits)
        return outputs if isinstance(outputs, dict) else {"logits": outputs}


def _lengths(batch_size: int, num_tokens: int, seq_len: int) -> list[int]:
    whole, rest = divmod(min(num_tokens, batch_size * seq_len), seq_len)
    return [seq_len] * whole + [rest] * (rest > 0)
