"""In the process, on the thread that calls: no queue, no scheduler. Buffers are shared, so one call at a time."""

import threading
from typing import Any

from tensorrt_llm._torch.pyexecutor.model_engine import PyTorchModelEngine


class EncoderExecutor:
    def __init__(self, model_engine: PyTorchModelEngine) -> None:
        self.model_engine = model_engine
        self._busy = threading.Lock()
        model_engine.runner.warmup()

    def batch_forward(self, inputs: dict[str, Any], *, gather_context_logits: bool = False) -> dict[str, Any]:
        assert self._busy.acquire(blocking=False), "a second call while the first is not done would race for buffers"
        try:
            return self.model_engine.encoder_forward(inputs, gather_context_logits=gather_context_logits)
        finally:
            self._busy.release()
