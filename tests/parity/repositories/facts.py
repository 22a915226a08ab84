"""What a repository on the hub holds, what its authors' code makes of it, and who says so.

The files are as published, in their real sizes. Weights and vocabularies are not here: folders.py makes small arbitrary
ones in the same form.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.model.tasks import Activation, Task
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words


class Head(enum.StrEnum):
    """What turns rows of tokens into the model's output, in the words of the table."""

    POOLED = "pooled"
    SCORES = "scores"  # transformers' …ForSequenceClassification
    ANSWER = "answer"  # the logits of "yes" and "no" after the last token
    SPLADE = "SPLADE"  # log(1 + relu) of the vocabulary's logits, the largest of each over the tokens
    COLBERT = "ColBERT"  # a linear layer for each token, then length 1
    STATIC = "static"  # the mean of a table's rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the authors' code computes, and so what the server must say of the folder and compute."""

    task: Task = Task.EMBED
    head: Head = Head.POOLED
    pooling: str = ""  # cls, mean or last; "" = nothing is pooled
    is_normalized: bool = False
    size: int  # numbers in a row; of a score, 1
    length: int  # tokens, special ones included
    activation: Activation = Activation.IDENTITY


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why it is not served, and what to do instead."""

    says: str  # part of the line that ends the start
    reason: str
    instead: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """Token ids of a text, by the authors' tokenizer or another of the same vocabulary."""

    of: str  # whose ids they are
    text: str = ""
    ids: tuple[int, ...] = ()  # none = only the tokens around a text are known
    first: str  # the tokens that stand around every text; "" = none
    last: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """One row of the table."""

    name: str
    files: Mapping[str, Any]  # by path: JSON files as published, config.json among them
    words: Words
    expected: Served | Refused
    rows: tuple[Source, ...] = ()  # who says what `expected` says; none = unverified
    also: str = ""  # what it gives besides, and the test of that
    doubt: str = ""  # why it is unverified
    ids: Ids | None = None  # None = unverified
    is_pickled: bool = False  # whether there is pytorch_model.bin and no safetensors
    answers: tuple[str, str] | None = None  # of a generative reranker: the tokens for yes and no; "" = yes alone counts
    table: tuple[str, str] | None = (
        None  # of a static model: its tensor's name, and the folder of tokenizer and weights
    )
    library: Mapping[str, Any] | None = None  # a small config.json in transformers' words, if the file has others
    held_by: str = ""  # the test of its rows, if that is not test_rows.py
    buffers: tuple[str, ...] = ()  # tensors in the weights that are no parameters
    card: tuple[str, ...] = ()  # prompts that only its card demands: name, a colon and a space, text

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json."""
        found: Mapping[str, Any] = self.files.get("config.json", {})
        return found

    @property
    def card_prompts(self) -> Mapping[str, str]:
        """By name."""
        named = (prompt.partition(": ") for prompt in self.card)
        return {name: text for name, _, text in named}

    @property
    def prompts(self) -> Mapping[str, str]:
        """The prompts that its files hold; jina-embeddings-v3 has them in config.json."""
        found: Mapping[str, str] = self.files.get("config_sentence_transformers.json", {}).get("prompts", {})
        return found or self.config.get("task_instructions", {})

    @property
    def default_prompt(self) -> str:
        """The one that is put before a text where none is asked for; "" = none."""
        name = self.files.get("config_sentence_transformers.json", {}).get("default_prompt_name")
        return self.prompts.get(name, "")
