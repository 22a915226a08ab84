"""The files beside config.json with a key changed, added or taken out, or a file: served as sentence-transformers
serves the changed folder, or refused in a line that names the key or the file.

Where the library itself refuses the folder, only a change without effect is served: the rows are those of before.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer, SparseEncoder

from engine.model import model_folder
from engine.model.tasks import Task
from engine.types import ModelError, OutputKind
from tests.engine.engines import load
from tests.parity.engines import compute
from tests.parity.fuzzing import TOLERANCE, other_value
from tests.parity.repositories.folders import save_small, small_files
from tests.parity.repositories.table import REPOSITORIES
from tests.parity.texts import Text
from tests.tiers import full_but
from tokenizer_pool import loading
from wire.tokenizer_files import TokenizerError

pytestmark = pytest.mark.holds("What a model is for")

_NAMES = (
    "all-MiniLM-L6-v2",  # the default tier's
    "all-mpnet-base-v2",
    "distiluse-base-multilingual-cased-v2",
    "snowflake-arctic-embed-m",
    "Qwen3-Embedding-0.6B",
    "static-retrieval-mrl-en-v1",
    "splade-v3",
)
_NUM_CHANGES, _NUM_IN_DEFAULT = 60, 8
_TEXTS = ("The Cat sat; it is 12 o'clock.", "Zürich " * 40, "a")
_MAX_LINE = 700  # characters of a refusal

_POOLING, _SENTENCE = "1_Pooling/config.json", "config_sentence_transformers.json"
_TRANSFORMER, _TOKENIZER, _MODULES = "sentence_bert_config.json", "tokenizer_config.json", "modules.json"
# Values that the library knows, and the files of some repositories do not have.
_LEGAL: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    _POOLING: {
        "pooling_mode": ("cls", "max", "mean", ["mean", "lasttoken"], "mean_sqrt_len_tokens", "weightedmean", []),
        "pooling_mode_max_tokens": (True,),
        "pooling_mode_cls_token": (True, False, None),
        "include_prompt": (True, False),
    },
    _SENTENCE: {
        "default_prompt_name": ("q", None),
        "prompts": ({"q": "Q: ", "document": ""}, {"q": None}, []),
        "truncate_dim": (8, None),
        "model_type": ("SentenceTransformer", "CrossEncoder", "SparseEncoder"),
    },
    _TRANSFORMER: {
        "max_seq_length": (5, None),
        "do_lower_case": (True, False),
        "model_args": ({"attn_implementation": "eager"}, {"num_labels": 3}),
        "processor_kwargs": ({"model_max_length": 7}, {"do_lower_case": True}),
        "transformer_task": ("feature-extraction", "fill-mask"),
    },
    _TOKENIZER: {
        "do_lower_case": (True, False),
        "strip_accents": (True, False, None),
        "tokenize_chinese_chars": (False,),
        "model_max_length": (6,),
        "cls_token": ("[MASK]",),
        "sep_token": ("[PAD]",),
        "unk_token": ("[PAD]", "[UNK]"),
        "mask_token": ("it",),
    },
}


@dataclass(frozen=True, slots=True)
class Change:
    """Of one file."""

    file: str
    place: int | None  # of the entry, in a list
    key: str  # "" = the file is taken out
    value: Any  # ... = the key is taken out

    def write(self, folder: Path) -> None:
        path = folder / self.file
        if not self.key:
            path.unlink()
            return
        content = json.loads(path.read_text()) if path.is_file() else {}
        entry = content if self.place is None else content[self.place]
        entry[self.key] = self.value
        if self.value is ...:
            del entry[self.key]
        path.write_text(json.dumps(content))


def drawn(files: Mapping[str, Any], draw: Random) -> Change:
    """A change of one of the files."""
    ours = sorted(path for path in files if path not in ("config.json", "README.md") and path.endswith(".json"))
    file = draw.choice(ours)
    if draw.random() < 0.06:
        return Change(file, None, "", ...)
    place = draw.randrange(len(files[file])) if isinstance(files[file], list) else None
    entry = files[file] if place is None else files[file][place]
    legal = _LEGAL.get(file, {})
    keys = [key for key in entry if not key.startswith("_")]
    kind = draw.choice(("legal", "legal", "other", "other", "out", "unknown"))
    if kind == "legal" and legal:
        key = draw.choice(sorted(legal))
        return Change(file, place, key, draw.choice(legal[key]))
    if kind == "unknown" or not keys:
        return Change(file, place, "made_up_key", draw.choice((1, True, "words")))
    key = draw.choice(sorted(keys))
    return Change(file, place, key, ... if kind == "out" else other_value(draw, entry[key]))


@dataclass(frozen=True, slots=True)
class Result:
    """What is said of a folder, and the rows of the texts without a prompt."""

    rows: list[NDArray[np.float32]]
    prompt: str  # the default one
    dimensions: int | None  # that are kept of a row


def served(folder: Path) -> Result:
    """By the transformers engine, or the static one. Raises ModelError and TokenizerError."""
    read = model_folder.read(folder)
    tokenizer_of = loading.load_as_it_stands if read.is_static else loading.load
    options = {} if read.is_static else {"do_lower_case": read.do_lower_case}
    tokenizer = tokenizer_of(read.weights_folder, **options)
    engine = load("static" if read.is_static else "transformers", folder)
    try:
        tokenizer.enable_truncation(read.max_seqlen)
        kind = OutputKind.SPARSE if read.task is Task.SPARSE else OutputKind.POOLED
        texts = [Text(tuple(tokenizer.encode(text).ids)) for text in _TEXTS]
        rows = [output[kind] for output in compute(engine, texts, kind)]
    finally:
        engine.close()
    if read.normalize:
        rows = [row / np.linalg.norm(row) for row in rows]
    return Result(rows, read.default_prompt, read.truncate_dim or read.max_active_dims)


def of_the_library(folder: Path, *, is_sparse: bool) -> Result | None:
    """None where it can't load the folder."""
    try:
        kind = SparseEncoder if is_sparse else SentenceTransformer
        model = kind(str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"})
        cut = "max_active_dims" if is_sparse else "truncate_dim"
        dimensions = getattr(model, cut)
        setattr(model, cut, None)
        options: dict[str, Any] = {"convert_to_sparse_tensor": False} if is_sparse else {}
        rows = model.encode(list(_TEXTS), prompt="", batch_size=1, show_progress_bar=False, **options)
    except Exception:
        return None
    prompt = model.prompts.get(str(model.default_prompt_name)) or ""
    return Result([np.asarray(row, np.float32) for row in rows], prompt, dimensions)


def difference(found: Result, expected: Result) -> str:
    """What differs, in words; "" = nothing does."""
    if found.prompt != expected.prompt or found.dimensions != expected.dimensions:
        return f"{found.prompt!r}, {found.dimensions} instead of {expected.prompt!r}, {expected.dimensions}"
    for row, other in zip(found.rows, expected.rows, strict=True):
        if row.shape != other.shape:
            return f"{row.shape} instead of {other.shape}"
        if not np.abs(row - other).max() <= TOLERANCE * max(1.0, np.abs(other).max()):
            return f"rows, by {np.abs(row - other).max()}"
    return ""


@pytest.mark.parametrize("name", full_but(_NAMES[:1], _NAMES))
def test_a_change_is_served_as_the_library_does_or_refused(name: str, tmp_path: Path) -> None:
    check_changes(name, tmp_path, range(_NUM_IN_DEFAULT))


@pytest.mark.full
@pytest.mark.parametrize("name", _NAMES)
def test_so_are_many(name: str, tmp_path: Path) -> None:
    check_changes(name, tmp_path, range(_NUM_IN_DEFAULT, _NUM_CHANGES))


def check_changes(name: str, tmp_path: Path, seeds: Iterable[int]) -> None:
    repository = next(each for each in REPOSITORIES if each.name.endswith(f"/{name}"))
    folder = save_small(repository, tmp_path / "model")
    before, is_sparse = served(folder), name.startswith("splade")
    for seed in seeds:
        change = drawn(small_files(repository), Random(f"{name} {seed}"))
        print(seed, change)  # what fails shows it
        copy = shutil.copytree(folder, tmp_path / str(seed))
        change.write(copy)
        try:
            found = served(copy)
        except (ModelError, TokenizerError) as refusal:
            check_refusal(str(refusal), change)
            continue
        is_plain = not is_sparse or not (copy / _MODULES).is_file()  # without it nothing says that it is sparse
        assert not difference(found, of_the_library(copy, is_sparse=not is_plain) or before), change


def check_refusal(message: str, change: Change) -> None:
    assert "\n" not in message
    assert len(message) <= _MAX_LINE, message
    of_a_path = ("config.json", "model.safetensors") if change.key == "path" else ()
    of_sizes = ("needs rows of",) if change.file == _POOLING else ()  # a step does not take those of this pooling
    of_a_file = ("config.json",) if change.file == _MODULES and not change.key else ()
    named = (change.key or change.file, change.file, *of_a_path, *of_sizes, *of_a_file)
    assert any(word in message for word in named), (change, message)
