"""The LLM: in this mode it only encodes, on the thread that calls it."""

from dataclasses import dataclass
from typing import Any

import torch

from tensorrt_llm._torch.pyexecutor.encoder_executor import EncoderExecutor
from tensorrt_llm._torch.pyexecutor.model_engine import PyTorchModelEngine
from tensorrt_llm.inputs import prompt_inputs
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.stand_in import faults

_RESERVED = frozenset(("input_ids", "seq_lens", "attn_metadata", "return_context_logits"))


@dataclass
class EncoderOutput:
    logits: torch.Tensor
    prompt_token_ids: list[int]
    prompt: str | None = None


class BaseLLM:
    def __init__(
        self,
        model: str,
        tokenizer: Any = None,
        tokenizer_mode: Any = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.args = TorchLlmArgs(
            model=model,
            tokenizer=tokenizer,
            tokenizer_mode=tokenizer_mode,
            skip_tokenizer_init=skip_tokenizer_init,
            trust_remote_code=trust_remote_code,
            tensor_parallel_size=tensor_parallel_size,
            dtype=dtype,  # type: ignore[arg-type]
            revision=revision,
            tokenizer_revision=tokenizer_revision,
            **kwargs,
        )
        self._encode_only = self.args.encode_only
        self._encoder_executor: EncoderExecutor | None = None
        if not self._encode_only:
            raise NotImplementedError("the stand-in generates nothing")
        if skip_tokenizer_init and "needs_tokenizer" in faults():
            raise ValueError("tokenizer is required to initialize the default input processor")
        self._build_model()

    def _build_model(self) -> None:
        self._encoder_executor = EncoderExecutor(PyTorchModelEngine(model_path=self.args.model, llm_args=self.args))

    def encode(
        self,
        inputs: Any,
        add_special_tokens: bool = True,
        batch_indexed_model_output: bool = True,
        copy_logits_to_host: bool = True,
        return_raw_logits: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        """The rows of a list of sequences, as they are."""
        if not self._encode_only:
            raise RuntimeError("encode() requires encode_only=True. Set encode_only=True in the LLM() constructor.")
        if self._encoder_executor is None:
            raise RuntimeError("LLM is shut down or not initialized. Please recreate the LLM object.")
        sequences = [prompt_inputs(each) for each in inputs]
        self._check(sequences)
        outputs = self._encoder_executor.batch_forward(
            {
                "input_ids": [token_id for sequence in sequences for token_id in sequence],
                "seq_lens": list(map(len, sequences)),
                **{name: value for name, value in model_kwargs.items() if name not in _RESERVED},
            },
            gather_context_logits=not batch_indexed_model_output,
        )
        logits = outputs["logits"]
        if copy_logits_to_host:
            logits = logits.cpu()
        assert return_raw_logits, "the stand-in gives rows as they are, and no EncoderOutput"
        return logits

    def _check(self, sequences: list[list[int]]) -> None:
        assert self._encoder_executor is not None
        engine = self._encoder_executor.model_engine
        if len(sequences) > engine.batch_size:
            raise ValueError(
                f"Batch size ({len(sequences)}) exceeds max_batch_size ({engine.batch_size}). Split inputs into "
                "smaller batches."
            )
        num_tokens, longest = sum(map(len, sequences)), max(map(len, sequences))
        if num_tokens > engine.max_num_tokens:
            raise ValueError(
                f"Total tokens ({num_tokens}) across the batch exceeds max_num_tokens ({engine.max_num_tokens}). "
                "Reduce batch size or sequence lengths."
            )
        if longest > engine.max_seq_len:
            raise ValueError(
                f"Max sequence length ({longest}) exceeds max_seq_len ({engine.max_seq_len}). Truncate the input or "
                "increase max_seq_len."
            )

    def shutdown(self) -> None:
        self._encoder_executor = None


class _TorchLLM(BaseLLM):
    pass


class LLM(_TorchLLM):
    pass


def _encode_without_raw_logits(self: BaseLLM, inputs: Any, add_special_tokens: bool = True, **kwargs: Any) -> Any:
    return BaseLLM.encode(self, inputs, add_special_tokens, **kwargs)


if "no_encode" in faults():
    del BaseLLM.encode
if "no_raw_logits" in faults():
    _TorchLLM.encode = _encode_without_raw_logits  # type: ignore[method-assign,assignment]
