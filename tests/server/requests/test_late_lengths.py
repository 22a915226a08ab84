"""How many tokens queries and documents of late-interaction folders have.

The lengths are those of pylate 1.6.0 (for its own folders) and of sentence-transformers 6.2's MultiVectorEncoder, for
a document and a query of 600 words and a query of one, in tiny folders of these forms.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.model import model_folder
from server.requests.late_interaction import shaped
from tests.engine.folder_files import change
from tests.engine.model.detection.shapes import CONFIG, multi_vector, pylate, stanford_colbert
from tokenizer_pool.messages import Truncation
from tokenizer_pool.token_ids import TokenizedTexts, offsets_of

_SENTENCE = "sentence_bert_config.json"
_FIXED = {"strategy": "fixed", "attend": False, "length": 32}


def lengths(folder: Path) -> list[int]:
    """Of a query of 600 words, a query of one and a document of 600 words."""
    found = model_folder.read(folder, needs_weights=False)
    assert found.late is not None
    seqlens = np.array([min(602, found.max_seqlen), 3, min(602, found.max_seqlen)])
    tokens = TokenizedTexts(np.full(seqlens.sum(), 7, np.int32), offsets_of(seqlens), np.zeros(3, np.uint8))
    done = asyncio.run(
        shaped(tokens, found.late, num_queries=2, max_seqlen=found.max_seqlen, truncation=Truncation.RIGHT)
    )
    return [int(seqlen) for seqlen in np.diff(done.offsets)]


def folder_of(folder: Path, make: Callable[[Path], None], *, positions: int = 512, **files: dict[str, Any]) -> Path:
    make(folder)
    change(folder / "config.json", max_position_embeddings=positions)
    for name, fields in files.items():
        change(folder / {"own": CONFIG, "sentence": _SENTENCE, "tokenizer": "tokenizer_config.json"}[name], **fields)
    return folder


@pytest.mark.parametrize(
    ("own", "saved", "expected"),
    [
        ({"query_length": 32, "document_length": 180}, 31, [32, 32, 180]),  # after a call with queries
        ({"query_length": 32, "document_length": 180}, 179, [32, 32, 180]),  # after one with documents
        ({"query_length": 48, "document_length": 300}, 47, [48, 48, 300]),
        ({"query_length": 48, "document_length": 300}, 299, [48, 48, 300]),  # GTE-ModernColBERT
        ({"query_length": 32, "document_length": 180}, 512, [32, 32, 180]),
        ({"query_length": None, "document_length": None}, 31, [32, 32, 180]),
    ],
)
def test_folders_of_pylate(tmp_path: Path, own: dict[str, Any], saved: int, expected: list[int]) -> None:
    folder = folder_of(tmp_path, pylate, own=own, sentence={"max_seq_length": saved})
    assert lengths(folder) == expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ({"max_seq_length": 20, "document_length": 50, "query_expansion": _FIXED}, [32, 32, 50]),
        ({"max_seq_length": 20, "document_length": None, "query_expansion": _FIXED}, [32, 32, 20]),
        ({"max_seq_length": 20, "document_length": 50, "query_expansion": None}, [20, 4, 50]),
        ({"max_seq_length": 20, "document_length": None, "query_expansion": None, "query_length": 30}, [30, 4, 20]),
    ],
)
def test_folders_of_sentence_transformers(tmp_path: Path, sentence: dict[str, Any], expected: list[int]) -> None:
    prompts = {"prompts": {"query": "[Q] ", "document": "[D] "}}
    assert lengths(folder_of(tmp_path, multi_vector, own=prompts, sentence=sentence)) == expected


def test_a_folder_of_stanford_whose_tokenizer_has_a_shorter_limit(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, stanford_colbert, tokenizer={"model_max_length": 31})
    change(folder / "artifact.metadata", query_maxlen=32, doc_maxlen=180, dim=4)
    assert lengths(folder) == [32, 32, 180]


def test_the_architecture_has_no_more_positions(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, pylate, positions=64, own={"document_length": 180}, sentence={"max_seq_length": 31})
    assert lengths(folder) == [16, 16, 64]
