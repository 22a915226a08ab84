"""The same weights as others run them: our transformers engine's way, transformers' own, and sentence-transformers'."""

import contextlib
import importlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.gpu.random_models import RandomModel, save_pooling, save_tokenizer, text_of
from benchmarks.gpu.shapes import Shape
from engine.rows.with_torch import pool
from engine.transformers import attention
from engine.transformers.forward import PackedForward
from engine.types import Batch


@contextlib.contextmanager
def packed(model: RandomModel) -> Iterator[Callable[[Batch], Tensor]]:
    """The `transformers` engine's forward with its pooling, inputs copied each time; float32 [B, D]."""
    own = model.module.config._attn_implementation
    attention.register()
    model.module.set_attn_implementation(attention.PACKED)
    forward = PackedForward(model.module, padding_idx=model.padding_idx)

    @torch.inference_mode()
    def rows(batch: Batch) -> Tensor:
        bounds = torch.tensor(batch.cu_seqlens, device=model.device).long()
        return pool(forward(batch), bounds, poolings=[model.shape.pooling])

    try:
        yield rows
    finally:
        model.module.set_attn_implementation(own)


@contextlib.contextmanager
def full_rows(model: RandomModel, *, is_compiled: bool) -> Iterator[Callable[[Tensor], Tensor]]:
    """Transformers' forward as it is, with PyTorch's attention, of sequences of one length [B, S]; pooled [B, D].

    is_compiled: by torch.compile, for this shape alone.
    """
    own = model.module.config._attn_implementation
    model.module.set_attn_implementation("sdpa")
    forward: Any = torch.compile(model.module, dynamic=False) if is_compiled else model.module
    token = -1 if model.shape.pooling == "last" else 0

    @torch.inference_mode()
    def rows(token_ids: Tensor) -> Tensor:
        hidden: Tensor = forward(input_ids=token_ids).last_hidden_state
        return hidden.mean(dim=1) if model.shape.pooling == "mean" else hidden[:, token]

    try:
        yield rows
    finally:
        model.module.set_attn_implementation(own)


class SentenceTransformers:
    """The library as its users call it: `encode` of texts, which it sorts, tokenizes and pads itself."""

    def __init__(self, model: RandomModel, *, batch_size: int) -> None:
        from sentence_transformers import SentenceTransformer

        modules = _modules()
        with tempfile.TemporaryDirectory() as folder:
            transformer = modules.Transformer(str(_stand_in(model.shape, Path(folder))))
        name = "model" if isinstance(getattr(transformer, "model", None), nn.Module) else "auto_model"
        setattr(transformer, name, model.module)  # a folder of 15 GB would have to be written first
        transformer.max_seq_length = model.shape.max_seqlen
        mode = {"last": "lasttoken"}.get(model.shape.pooling, model.shape.pooling)
        pooling = modules.Pooling(model.shape.hidden_size, pooling_mode=mode)
        self._model: Any = SentenceTransformer(
            modules=[transformer, pooling, modules.Normalize()], device=str(model.device)
        )
        self._batch_size = batch_size

    def call(self, sequences: Sequence[Sequence[int]]) -> Callable[[], NDArray[np.float32]]:
        """One `encode` of these, as texts of as many tokens; gives rows of length 1."""
        texts = [text_of(token_ids) for token_ids in sequences]

        def encode() -> NDArray[np.float32]:
            rows: NDArray[np.float32] = self._model.encode(texts, batch_size=self._batch_size, show_progress_bar=False)
            return rows

        return encode


def _modules() -> Any:
    """Where the library keeps them depends on its release."""
    try:
        return importlib.import_module("sentence_transformers.sentence_transformer.modules")
    except ImportError:
        return importlib.import_module("sentence_transformers.models")


def _stand_in(shape: Shape, folder: Path) -> Path:
    """A model of next to no size with the tokenizer of the real one."""
    from transformers import AutoConfig, AutoModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    heads = {"num_key_value_heads": 1, "head_dim": 16} if shape.is_gated else {}
    config = AutoConfig.for_model(shape.model_type, **{**shape.model_config(), **sizes, **heads})
    AutoModel.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    save_tokenizer(shape, folder)
    save_pooling(shape, folder)
    return folder
