"""Models of true shapes with random weights, made on the device, and folders of them for what loads from disk."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from benchmarks.gpu.shapes import Shape
from engine.types import Batch, OutputKind

NUM_SPECIAL = 5  # the first ids are padding and markers
_POSITIONS_AFTER_PADDING = ("xlm-roberta",)
_ADDED = ("o_proj.weight", "down_proj.weight", "output.dense.weight")  # products whose rows are added to the stream
_TAME = 0.0005  # 36 layers of 4,096 then add about as much as the words are; by 0.02 only 24 of 144 products passed
_SHARE_OF_WORDS = 0.01  # of the vocabulary, in a text's sparse row; SPLADE's have a few hundred of 30,522
_SEED = 0


@dataclass(frozen=True, slots=True)
class RandomModel:
    """As transformers has it."""

    shape: Shape
    module: PreTrainedModel  # without a head, unless another class was asked for
    config: PretrainedConfig
    dtype: torch.dtype
    device: torch.device

    @property
    def padding_idx(self) -> int | None:
        """Positions are numbered from the one behind it; None = from 0."""
        return self.config.pad_token_id if self.shape.model_type in _POSITIONS_AFTER_PADDING else None


def build(shape: Shape, device: torch.device, *, is_tame: bool = False, library_class: Any = AutoModel) -> RandomModel:
    """Weights as transformers draws them for training: N(0, 0.02), norms 1. bf16 on a GPU, float32 on a CPU.

    is_tame: what layers add to the residual stream is small, as in trained models, so that FP8 passes its quality gate.
    """
    torch.manual_seed(_SEED)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    config = AutoConfig.for_model(shape.model_type, **shape.model_config())
    config.use_cache = False
    with torch.device(device):
        module = library_class.from_config(config, dtype=dtype)
    module.eval().requires_grad_(False)
    if is_tame:
        for name, parameter in module.named_parameters():
            if name.endswith(_ADDED):
                parameter.mul_(_TAME)
    return RandomModel(shape, module, config, dtype, device)


def bias_of_words(deviation: float, seqlen: int) -> float:
    """Added to scores of words with this standard deviation: few are above 0 in a text, as SPLADE's training has it."""
    return -deviation * NormalDist().inv_cdf(1 - _SHARE_OF_WORDS / seqlen)


def batch_of(shape: Shape, seqlens: Sequence[int], *, seed: int = 0) -> Batch:
    """Random ids in sequences of these lengths."""
    cu_seqlens = np.concatenate(([0], np.cumsum(seqlens))).astype(np.int32)
    generator = np.random.default_rng(seed)
    token_ids = generator.integers(NUM_SPECIAL, shape.vocab_size, cu_seqlens[-1], np.int32)
    return Batch("m", OutputKind.POOLED, token_ids, cu_seqlens)


def text_of(token_ids: Sequence[int]) -> str:
    """What the tokenizer of `save_tokenizer` makes these ids of, one token a word."""
    return " ".join(f"w{token_id}" for token_id in token_ids)


def save(model: RandomModel, folder: Path) -> Path:
    """A model folder that any library loads: weights, tokenizer, and how to pool."""
    model.module.save_pretrained(folder)
    save_tokenizer(model.shape, folder)
    save_pooling(model.shape, folder)
    return folder


def save_tokenizer(shape: Shape, folder: Path) -> None:
    """Words "w5", "w6", …; nothing is put around a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    # special tokens are found within words as well, so none may be the beginning of another
    words = {
        f"<{token_id}>" if token_id < NUM_SPECIAL else f"w{token_id}": token_id for token_id in range(shape.vocab_size)
    }
    unknown, pad = f"<{NUM_SPECIAL - 1}>", f"<{shape.config.get('pad_token_id', 0)}>"
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.max_seqlen,
        "pad_token": pad,
        "unk_token": unknown,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))


def save_pooling(shape: Shape, folder: Path) -> None:
    """As sentence-transformers writes it."""
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(zip(kinds, ("", "1_Pooling", "2_Normalize"), strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    modes = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}
    pooling = {f"pooling_mode_{name}": kind == shape.pooling for kind, name in modes.items()}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": shape.hidden_size, **pooling})
    )
    (folder / "2_Normalize").mkdir(exist_ok=True)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": shape.max_seqlen}))
