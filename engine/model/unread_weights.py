"""Weights in a model's files that nothing reads: those of heads that the task does not need, or those of another model.

A weight inside a part that is computed would change rows, so the model is refused by its name: a BERT with distances
between tokens, or a layer with a bias that its class lacks.
"""

from collections.abc import Collection, Mapping

from engine.types import ModelError

# Numbers that older versions of the library wrote down: they follow from the configuration.
_FOLLOWS = ("position_ids", "inv_freq", "original_inv_freq", "masked_bias", "attn.bias", "relative_position_index")
# BERT's second head of pre-training, which is inside the part that scores the vocabulary.
_OTHER_HEADS = ("cls.seq_relationship.",)
# Differences that training left in DeBERTa-v3's files beside the table itself.
_LEFT_OVER = ("word_embeddings._weight",)


def check_read(unread: Mapping[str, object], parts: Collection[str], *, architecture: str) -> None:
    """Raises ModelError if one of the unread weights is inside a part.

    unread: names of weights, without the base model's prefix, and for messages where each one is. parts: the first
    words of the weights' names that are read, such as "encoder".
    """
    others = sorted(name for name in unread if name.partition(".")[0] in parts and not _changes_nothing(name))
    if others:
        which = f"the weight {unread[others[0]]}" + (f", and {len(others) - 1} others" if len(others) > 1 else "")
        raise ModelError(
            f"{which}: {architecture!r} with this config.json has none of that name, so its rows would be another "
            "model's; check num_hidden_layers and what else config.json says"
        )


def _changes_nothing(name: str) -> bool:
    return name.startswith(_OTHER_HEADS) or any(
        name == ending or name.endswith(f".{ending}") for ending in (*_FOLLOWS, *_LEFT_OVER)
    )
