"""Where attention is in old versions."""

from tensorrt_llm.stand_in import only_with
from tensorrt_llm.stand_in.attention import Attention, QKNormRoPEAttention

only_with(old_paths=True, module=__name__)

__all__ = ["Attention", "QKNormRoPEAttention"]
