"""What our classes make of the rows of tokens, as plain data: found in the folder, read again inside the library.

The library hands a model's class nothing but its configuration, so this travels there, as one entry of it.
"""

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

POOLINGS = ("last", "mean", "cls")
CONFIG_KEY = "embedline"  # the entry's name: an attribute of the pretrained configuration


class HeadKind(enum.StrEnum):
    """What a row is."""

    EMBED = "embed"  # the pooled row itself
    SCORE = "score"  # one raw score a label, by the `score` layer of …ForSequenceClassification
    ANSWER = "yes_no"  # the next token's raw score of yes, less that of no


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Fit for JSON by `to_config`."""

    kind: HeadKind
    pooling: str  # which rows count: "last", "mean" or "cls"
    is_causal: bool  # False = every token of a sequence sees every other
    num_outputs: int  # numbers in a row: the hidden size, the labels, or one
    yes_id: int | None = None  # rows of the vocabulary, for ANSWER alone
    no_id: int | None = None  # None = the raw score of yes alone

    def to_config(self) -> dict[str, Any]:
        """What `from_config` makes it of again."""
        return {**dataclasses.asdict(self), "kind": str(self.kind)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """`config` may have come through JSON."""
        return cls(**{**config, "kind": HeadKind(config["kind"])})
