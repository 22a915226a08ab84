"""The facts about a converted model before it is compiled, and the file that takes it to another process.

Shapes: S tokens of a sequence, D numbers a row; where a sequence has one row, S is 1.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.selftest.sample_ids import Sequences

FILE = "rows.npz"  # plain arrays; numpy reads pickled ones only where it is asked to
_FACTS = "facts"


RowsOfEach = list[NDArray[np.float32]]  # [S, D] of each sequence


@dataclass(frozen=True, slots=True)
class Reference:
    """Sequences and the rows that the original gives for them, one sequence at a time."""

    sequences: Sequences  # int32 [S] each
    rows: RowsOfEach  # of the first ones; the others are there to stand beside them
    hides_tokens: bool = False  # whether the last half of each sequence is hidden from the other tokens
    adapter: int = 0  # the number of the adapter by name that computes them; 0 = none

    @property
    def dimensions(self) -> int:
        """D."""
        return int(self.rows[0].shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The references are rows of the original."""

    references: tuple[Reference, ...]  # of arbitrary ids, which the compiled model has to give; none if quantized
    of_texts: tuple[Reference, ...]  # of English texts, where the loss of fewer bits is to be measured
    computed_by: str  # whose rows these are, for people
    notes: tuple[str, ...]  # what the self-test leaves out
    num_products: int  # quantized matrix products
    dimensions: int  # see Facts
    pad_id: int  # see Facts


def write(folder: Path, converted: Converted) -> None:
    """Put the file beside the converted model. Raises OSError."""
    sets = [*converted.references, *converted.of_texts]
    arrays = {f"{number} {name}": array for number, each in enumerate(sets) for name, array in _arrays(each).items()}
    facts = {
        **{name: getattr(converted, name) for name in ("computed_by", "notes", "num_products", "dimensions", "pad_id")},
        "num_references": len(converted.references),
        "num_sets": len(sets),
    }
    with (folder / FILE).open("wb") as stream:
        np.savez(stream, allow_pickle=False, **{_FACTS: np.array(json.dumps(facts))}, **arrays)


def read(folder: Path) -> Converted:
    """The inverse of `write`. Raises OSError, and any other error if the file is damaged."""
    with np.load(folder / FILE, allow_pickle=False) as arrays:
        facts = json.loads(str(arrays[_FACTS]))
        sets = [_reference(arrays, number) for number in range(facts["num_sets"])]
    count = facts["num_references"]
    return Converted(
        references=tuple(sets[:count]),
        of_texts=tuple(sets[count:]),
        computed_by=str(facts["computed_by"]),
        notes=tuple(facts["notes"]),
        num_products=facts["num_products"],
        dimensions=facts["dimensions"],
        pad_id=facts["pad_id"],
    )


def _arrays(reference: Reference) -> dict[str, NDArray[Any]]:
    return {
        "ids": np.concatenate(reference.sequences),
        "seqlens": np.array([len(each) for each in reference.sequences], np.int32),
        "rows": np.concatenate(reference.rows),
        "num_rows": np.array([len(each) for each in reference.rows], np.int32),
        "hides_tokens": np.array(reference.hides_tokens),
        **({"adapter": np.array(reference.adapter)} if reference.adapter else {}),
    }


def _reference(arrays: Mapping[str, NDArray[Any]], number: int) -> Reference:
    names = ("ids", "seqlens", "rows", "num_rows", "hides_tokens")
    ids, seqlens, rows, num_rows, hides = (arrays[f"{number} {name}"] for name in names)
    return Reference(
        np.split(ids.astype(np.int32, copy=False), np.cumsum(seqlens[:-1])),
        np.split(rows.astype(np.float32, copy=False), np.cumsum(num_rows[:-1])),
        bool(hides),
        int(arrays.get(f"{number} adapter", 0)),
    )
