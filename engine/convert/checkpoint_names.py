"""Finds the tensor of a checkpoint that a class of transformers reads as one of its own. Knows no adapter.

Mostly they have one name, but for the prefix of the class with a head: `encoder.layer.0…` in one is
`bert.encoder.layer.0…` in the other. Where transformers renames on loading, or cuts up a tensor, it is listed here.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.types import ModelError

# Of BERT's first checkpoints.
_OLD_NORMS = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
_NOMIC = {
    "embeddings.LayerNorm": "emb_ln",
    "mlp.up_proj": "mlp.fc11",
    "mlp.gate_proj": "mlp.fc12",
    "mlp.down_proj": "mlp.fc2",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
    "layers.": "encoder.layers.",
}
# What the library's class calls a part of a name -> what the checkpoint calls it (transformers 5.23,
# conversion_mapping.py): nomic_bert, jina_embeddings_v3, gte.
_RENAMED: tuple[Mapping[str, str], ...] = (
    _OLD_NORMS,
    {**_NOMIC, "self_attn.o_proj": "attn.out_proj"},
    {**_NOMIC, "self_attn.o_proj": "mixer.out_proj"},
    {
        "self_attn.o_proj": "attention.o_proj",
        "post_attention_layernorm": "attn_ln",
        "post_mlp_layernorm": "mlp_ln",
        "layers.": "encoder.layer.",
    },
)
# The same of tensors that are an equal share of the rows of another.
_SHARES: tuple[Mapping[str, tuple[str, ...]], ...] = (
    {},
    {"attn.Wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
    {"mixer.Wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
    {
        "attention.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj"),
    },
)


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor of the checkpoint, or a share of its rows."""

    name: str
    number: int = 0  # of the share
    num_shares: int = 1


def find(name: str, stored: Collection[str], folder: Path) -> Place | None:
    """Where a class's tensor is. stored: all names of the checkpoint in `folder`. Raises ModelError where there are
    several that it could be."""
    tops = sorted({each.partition(".")[0] for each in stored if "." in each})
    for place in _spelled(name):
        inside = [f"{top}.{place.name}" for top in tops]
        for ways in ([place.name], inside, [place.name.partition(".")[2]]):
            found = [each for each in ways if each in stored]
            if len(found) > 1:
                raise ModelError(f"{name!r} may be {found[0]!r} or {found[1]!r} of the base in {folder}")
            if found:
                return Place(found[0], place.number, place.num_shares)
    return None


def _spelled(name: str) -> Iterator[Place]:
    """The names that it may have, but for a prefix."""
    yield Place(name)
    for renamed, shares in zip(_RENAMED, _SHARES, strict=True):
        place = Place(name)
        for whole, parts in shares.items():
            for number, part in enumerate(parts):
                if part in name:
                    place = Place(name.replace(part, whole), number, len(parts))
        spelled = place.name
        for new, old in renamed.items():
            spelled = spelled.replace(new, old)
        yield Place(spelled, place.number, place.num_shares)
