"""A stand-in for TensorRT-LLM: its signatures, errors and habits, computed by transformers' layers on a CPU.

For tests alone, and put on an engine's path by them. It is written after upstream's source (1.3's last candidates to
1.4.0rc1) and holds nothing of the engine's: no pooling, no head, no tolerance. Numbers are float32 whatever `dtype`
says, so that a difference to transformers is the engine's. See `stand_in` for how it is made to fail.
"""

from tensorrt_llm.llmapi import LLM

__version__ = "1.4.0rc1"
__all__ = ["LLM", "__version__"]
