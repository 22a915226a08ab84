"""What is public."""

from typing import Any

from tensorrt_llm.llmapi import llm_args
from tensorrt_llm.llmapi.llm import LLM, EncoderOutput
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.stand_in import faults

__all__ = ["LLM", "EncoderOutput", "TorchLlmArgs"]


def __getattr__(name: str) -> Any:
    if name == "EncodeCudaGraphConfig" and "no_graphs" not in faults():
        return llm_args.EncodeCudaGraphConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
