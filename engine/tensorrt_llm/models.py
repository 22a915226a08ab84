"""Our model classes, as tensorrt_llm builds them: a backbone of its own, then the pooling, then the head.

Upstream's classes end in the scores of the whole vocabulary, and see only what comes before a token. Ours are
registered under names of their own, so the checkpoint's `architectures` is replaced, and nothing of upstream's is.

Upstream has no RoBERTa either: ours is its BERT with other positions. Its runner numbers positions 0, 1, … and takes
others beside the ids in some versions alone: older ones overwrite them without a word, and with CUDA graphs it refuses
them. So the class numbers them itself.

Shapes: T tokens of all sequences, B sequences, D numbers a row of the backbone, L numbers a row of the head, V entries
of the vocabulary.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.tensorrt_llm import private
from engine.tensorrt_llm.planning.backbone import ROBERTA_PREFIX
from engine.tensorrt_llm.planning.families import Family
from engine.tensorrt_llm.planning.head import CONFIG_KEY, HeadKind, PlannedHead
from engine.types import ModelError


def register(family: Family) -> None:
    """Make the family's class known under its `architecture`. Raises ModelError where this version can't have it."""
    (_register_encoder if family.is_encoder else _register_decoder)(family)


def _register_decoder(family: Family) -> None:
    upstream = private.registry()
    backbone = private.backbone(family.module, family.backbone)

    @upstream.register_model(family.architecture)
    class PooledModel(upstream.base):  # type: ignore[misc, name-defined]
        """One row [L] a sequence."""

        def __init__(self, model_config: Any) -> None:
            nn.Module.__init__(self)  # the base's own makes the scores of the vocabulary
            self.model_config = model_config
            config = model_config.pretrained_config
            self.head = PlannedHead.from_config(getattr(config, CONFIG_KEY))
            self.model = backbone(model_config)
            if self.head.kind is not HeadKind.EMBED:
                # float32, as it is small; no layer of upstream's, so that no quantization touches it
                self.score = nn.Linear(config.hidden_size, self.head.num_outputs, bias=False, dtype=torch.float32)
            if not self.head.is_causal:
                attend_to_all(self.model.layers, private.full_mask())

        def forward(
            self, attn_metadata: Any, input_ids: Tensor, position_ids: Tensor | None = None, **kwargs: Any
        ) -> dict[str, Tensor]:
            """input_ids int32 [T], position_ids int32 [1, T]; float32 [B, L] as "logits".

            kwargs: what the runner adds, such as `seq_lens` while no graph is used; some backbones would choke on it.
            """
            token_rows = self.model(attn_metadata=attn_metadata, input_ids=input_ids, position_ids=position_ids)
            rows = pool(token_rows, attn_metadata.seq_lens_cuda, self.head.pooling)
            if self.head.kind is not HeadKind.EMBED:
                rows = functional.linear(rows, self.score.weight)
            return {"logits": rows}

        def load_weights(self, weights: Any, weight_mapper: Any = None, skip_modules: Any = (), **kwargs: Any) -> None:
            """The head's weights are read first: upstream may free a weight once its own module has it."""
            is_tied = bool(getattr(self.model_config.pretrained_config, "tie_word_embeddings", False))
            rows = score_rows(weights, self.head, is_tied=is_tied)
            super().load_weights(weights, weight_mapper=weight_mapper, skip_modules=[*skip_modules, SCORE], **kwargs)
            if rows is not None:
                self.score.weight.data.copy_(rows)
            link_norms(self.model)

    @upstream.register_mapper("HF", family.architecture)
    class Mapper(upstream.mapper):  # type: ignore[misc, name-defined]
        """Takes files of the backbone alone, as embedding models have them."""

        def filter_weights(self, prefix: str, weights: Any) -> dict[str, Any]:
            """The weights below a module's name, by the rest of their names."""
            return with_or_without_prefix(super().filter_weights, prefix, weights)


def attend_to_all(layers: Iterable[Any], full_mask: Any) -> None:
    """Every token sees every other of its sequence, whatever mask a layer asks its attention for.

    Not all backbones hand on what their `forward` is given, and some layers hand it on to parts that do not take it, so
    each layer's own attention is wrapped. All of them give the mask by name or not at all; one that gave it by place
    would fail of it, which shows.
    """
    for layer in layers:
        layer.self_attn.forward = _with_mask(layer.self_attn.forward, full_mask)


def _with_mask(forward: Callable[..., Any], mask: Any) -> Callable[..., Any]:
    def masked(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **{**kwargs, "attention_mask": mask})

    return masked


def link_norms(backbone: Any) -> None:
    """Where a layer applies the norm that follows it, as LlamaDecoderLayer does, tell it which one that is.

    The library's own LlamaForCausalLM does this after it has loaded the weights: done before, the same norm would have
    two names, and be loaded under neither.
    """
    layers = list(backbone.layers)
    following = [*(layer.input_layernorm for layer in layers[1:]), backbone.norm]
    for layer, norm in zip(layers, following, strict=True):
        if hasattr(layer, "next_layer_layernorm"):
            layer.next_layer_layernorm = norm


PREFIX = "model."  # of the backbone's weights in a file of a whole model
SCORE = "score"  # of the layer that makes scores, there and in our classes

_EMBEDDING = f"{PREFIX}embed_tokens.weight"  # [V, D]
_VOCABULARY = "lm_head.weight"  # [V, D]

Weights = Mapping[str, Any]  # tensors, or what gives one for [:]


def with_or_without_prefix(filtered: Callable[[str, Any], dict[str, Any]], prefix: str, weights: Any) -> dict[str, Any]:
    """The weights that `filtered` finds below a module's name, or below the same in a file of the backbone alone."""
    found = filtered(prefix, weights)
    return found if found or not prefix.startswith(PREFIX) else filtered(prefix.removeprefix(PREFIX), weights)


def score_rows(weights: Weights, head: PlannedHead, *, is_tied: bool) -> Tensor | None:
    """float32 [L, D], a copy; None for a head without a layer. is_tied: the embedding is the vocabulary's scores too.
    Raises ModelError where the file has not got them, or has them in numbers that mean nothing without a scale."""
    match head.kind:
        case HeadKind.EMBED:
            return None
        case HeadKind.SCORE:
            return _as_float32(_tensor(weights, f"{SCORE}.weight"))
    rows = _tensor(weights, _EMBEDDING if is_tied else _VOCABULARY)
    yes = _as_float32(rows[head.yes_id])
    return (yes if head.no_id is None else yes - _as_float32(rows[head.no_id]))[None]


def _tensor(weights: Weights, name: str) -> Tensor:
    """The tensor as stored: a vocabulary in float32 may be gigabytes more than the two rows that are needed of it."""
    found = next((each for each in (name, name.removeprefix(PREFIX)) if each in weights), None)
    if found is None:
        raise ModelError(f"the weights have no {name}, which is needed to compute scores")
    tensor: Tensor = weights[found][:]
    if not tensor.is_floating_point() or tensor.element_size() < 2:
        raise ModelError(f"the tensor {found!r} is stored quantized; the layer that computes scores must be plain")
    return tensor


def _as_float32(rows: Tensor) -> Tensor:
    """A copy on the CPU."""
    return rows.to(device="cpu", dtype=torch.float32, copy=True)


def pool(token_rows: Tensor, seq_lens: Tensor, pooling: str) -> Tensor:
    """float32 [B, D] of token rows [T, D] and lengths [B] (whole numbers, same device); pooling: of head.POOLINGS.

    A CUDA graph can record it: no size is read back. A recorded shape is padded: T may be more than the sequences come
    to, and a sequence may be empty; its row may be anything, and the others' must not change.
    """
    ends = torch.cumsum(seq_lens, dim=0, dtype=torch.int64)
    match pooling:
        case "last":
            return token_rows[(ends - 1).clamp(min=0)].float()
        case "cls":
            return token_rows[(ends - seq_lens).clamp(max=len(token_rows) - 1)].float()
    assert pooling == "mean", pooling
    return _mean(token_rows, seq_lens, ends)


def _mean(token_rows: Tensor, seq_lens: Tensor, ends: Tensor) -> Tensor:
    """Sums into one row more than there are sequences: it takes the tokens that belong to none."""
    num_tokens, size = token_rows.shape
    owners = torch.searchsorted(ends, torch.arange(num_tokens, device=ends.device), right=True)
    sums = token_rows.new_zeros((len(ends) + 1, size), dtype=torch.float32)
    sums.index_add_(0, owners, token_rows.float())
    return sums[:-1] / seq_lens.clamp(min=1)[:, None]


def _register_encoder(family: Family) -> None:
    upstream = private.backbone(family.module, "BertForSequenceClassification")
    backbone = private.backbone(family.module, family.backbone)

    @private.registry().register_model(family.architecture)
    class PooledEncoder(upstream):  # type: ignore[misc, valid-type]
        """One row [L] a sequence. Of upstream's classifier it has what its loader and its runner ask a model for."""

        def __init__(self, model_config: Any) -> None:
            nn.Module.__init__(self)  # upstream's own makes BERT's pooler and classifier
            self.model_config = model_config
            config = model_config.pretrained_config
            self.head = PlannedHead.from_config(getattr(config, CONFIG_KEY))
            self.model = backbone(model_config, add_pooling_layer=False)
            if self.head.kind is HeadKind.SCORE:
                self.classifier = EncoderClassifier(config.hidden_size, self.head.num_outputs)

        def forward(
            self, attn_metadata: Any, input_ids: Tensor, position_ids: Tensor | None = None, **kwargs: Any
        ) -> dict[str, Tensor]:
            """input_ids int32 [T], position_ids int32 [1, T], as of a BERT; float32 [B, L] as "logits"."""
            assert position_ids is not None, "the runner numbers the tokens"
            assert self.head.padding_idx is not None, "planned for an encoder"
            token_rows = self.model(
                attn_metadata=attn_metadata,
                input_ids=input_ids,
                token_type_ids=torch.zeros_like(input_ids),
                position_ids=positions(input_ids, position_ids.flatten(), self.head.padding_idx),
            )
            rows = pool(token_rows, attn_metadata.seq_lens_cuda, self.head.pooling)
            return {"logits": self.classifier(rows) if self.head.kind is HeadKind.SCORE else rows}

        def load_weights(self, weights: Any) -> None:
            """Upstream's own needs BERT's names, and makes float16 of whatever it was built with."""
            fill(self.model, weights)
            self.model.to(self.model_config.pretrained_config.torch_dtype)
            if self.head.kind is HeadKind.SCORE:
                for name, parameter in self.classifier.named_parameters():
                    parameter.data.copy_(weights[f"classifier.{name}"][:])


class EncoderClassifier(nn.Module):
    """transformers' head of RoBERTa's classifiers, on the first token. In float32, as it is small."""

    def __init__(self, hidden_size: int, num_labels: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size, dtype=torch.float32)
        self.out_proj = nn.Linear(hidden_size, num_labels, dtype=torch.float32)

    def forward(self, rows: Tensor) -> Tensor:
        """float32 [B, D] to [B, L]."""
        scores: Tensor = self.out_proj(torch.tanh(self.dense(rows)))
        return scores


def positions(input_ids: Tensor, places: Tensor, padding_idx: int) -> Tensor:
    """int32 [T]: RoBERTa's positions, see engine.rows.with_numpy. places: int32 [T], 0, 1, … in each sequence.

    A CUDA graph can record it. What pads a recorded shape has place 0, and so a position that exists.
    """
    is_token = (input_ids != padding_idx).long()
    num_before = torch.cumsum(is_token, dim=0) - is_token
    starts = torch.arange(len(input_ids), device=input_ids.device) - places
    numbers = (num_before - num_before[starts] + 1) * is_token + padding_idx
    return numbers.int()


# Modules of upstream's BERT -> theirs in the files. A joined one has its parts in upstream's order.
_IN_FILES = {
    "embedding.word_embeddings": ("embeddings.word_embeddings",),
    "embedding.position_embeddings": ("embeddings.position_embeddings",),
    "embedding.token_type_embeddings": ("embeddings.token_type_embeddings",),
    "embedding.embedding_ln": ("embeddings.LayerNorm",),
}
_IN_LAYERS = {
    "self_attn.qkv_proj": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "self_attn.o_proj": ("attention.output.dense",),
    "input_layernorm": ("attention.output.LayerNorm",),  # after attention, whatever its name says
    "mlp.fc1": ("intermediate.dense",),
    "mlp.fc2": ("output.dense",),
    "post_layernorm": ("output.LayerNorm",),
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


def fill(backbone: nn.Module, weights: Weights) -> None:
    """Load upstream's BERT from a file of RoBERTa, whole or the backbone alone. Raises ModelError, see `in_files`."""
    prefix = ROBERTA_PREFIX if any(name.startswith(ROBERTA_PREFIX) for name in weights) else ""
    for name, module in backbone.named_modules():
        if not module._parameters:
            continue
        parts = [_tensors(weights, f"{prefix}{part}.") for part in in_files(name)]
        load: Any = getattr(module, "load_weights", None)
        if load is not None:
            load(weights=parts)
            continue
        for kind, parameter in module.named_parameters(recurse=False):
            parameter.data.copy_(parts[0][kind])


def in_files(module: str) -> tuple[str, ...]:
    """The names in the files of a module's parts. Raises ModelError for one that upstream's BERT did not have."""
    layer = _LAYER.fullmatch(module)
    parts = _IN_FILES.get(module, ()) if layer is None else _IN_LAYERS.get(layer[2], ())
    if not parts:
        raise ModelError(f"this tensorrt_llm has a module {module} in its BERT, which no weights are known for")
    return parts if layer is None else tuple(f"encoder.layer.{layer[1]}.{part}" for part in parts)


def _tensors(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The weight and the bias of a module."""
    return {kind: weights[prefix + kind][:] for kind in ("weight", "bias") if prefix + kind in weights}
