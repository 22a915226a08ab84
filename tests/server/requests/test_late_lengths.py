"""How many tokens queries and documents of late-interaction folders have.

The lengths are those of pylate 1.6.0 (for its own folders) and of sentence-transformers 6.2's MultiVectorEncoder, for
a document and a query of 600 words and a query of one, in tiny folders of these forms.

The ids are those that the library itself makes, whatever special tokens a tokenizer puts around a text.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from batch_manager.client import BatchManagers
from engine.model import model_folder
from engine.types import OutputKind
from server.requests.admission import Admission
from server.requests.late_interaction import lengths as longest
from server.requests.late_interaction import shaped
from server.requests.pipeline import Pipeline
from server.requests.work import RequestContext, Work
from tests.engine.folder_files import change
from tests.engine.model.detection.shapes import CONFIG, multi_vector, pylate, stanford_colbert
from tests.engine.tiny_models import save
from tests.server.edge import served_model
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.messages import TextRefusal, TextRefused, TokenizerSpec, Truncation
from tokenizer_pool.tasks import TokenizedTexts, offsets_of
from tokenizer_pool.token_ids import join
from tokenizer_pool.tokenizer import Tokenizer as OwnTokenizer
from wire.vocabulary import RequestClass

_SENTENCE = "sentence_bert_config.json"
_FIXED = {"strategy": "fixed", "attend": False, "length": 32}


def lengths(folder: Path) -> list[int]:
    """Of a query of 600 words, a query of one and a document of 600 words."""
    found = model_folder.read(folder, needs_weights=False)
    assert found.late is not None
    most = longest(found.late, found.max_seqlen)
    assert most is not None
    seqlens = np.array([min(602, most.query), 3, min(602, most.document)])
    tokens = TokenizedTexts(np.full(seqlens.sum(), 7, np.int32), offsets_of(seqlens), np.zeros(3, np.uint8))
    done = asyncio.run(shaped(tokens, found.late, num_queries=2, max_seqlen=found.max_seqlen))
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


_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[BOS]", "[SEP]", "[EOS]", "[MASK]", "[Q]", "[D]", "a")


def tokenizer_with(frame: str) -> PreTrainedTokenizerFast:
    """Words w10 to w39 as ids 10 to 39; `frame` is what is put around a text, as `[CLS] $A [SEP]`."""
    words = {word: number for number, word in enumerate((*_SPECIAL, *(f"w{number}" for number in range(10, 40))))}
    made = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = WhitespaceSplit()
    made.add_special_tokens(list(_SPECIAL[:9]))
    special = [(word, words[word]) for word in frame.split() if word != "$A"]
    made.post_processor = TemplateProcessing(single=frame, special_tokens=special)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)  # type: ignore[no-untyped-call]


class _Pool:
    """A tokenizer, asked as the pool is."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self._tokenizer = OwnTokenizer(spec)

    async def tokenize(self, texts: Sequence[str], *, model: int, request_class: Any, **how: Any) -> TokenizedTexts:
        return join([self._tokenizer.encode(texts, **how)])

    async def tokenize_details(self, texts: Sequence[str], *, model: int, request_class: Any) -> Any:
        return self._tokenizer.details(texts).tokens


def own_ids(folder: Path, texts: Sequence[str], *, num_queries: int, **how: Any) -> list[list[int]]:
    """Of the first texts as queries, and of the others as documents."""
    found = model_folder.read(folder, needs_weights=False)
    pool = _Pool(TokenizerSpec(folder=str(folder / found.tokenizer_folder), max_seqlen=found.max_seqlen))
    pipeline = Pipeline(cast(Admission, Mock()), cast(TokenizerPool, pool), cast(BatchManagers, None))
    model = served_model(max_seqlen=found.max_seqlen, late=found.late)
    how |= {"query_prompt": found.prompts.get("query", ""), "prompt": found.prompts.get("document", "")}
    work = Work(
        model=model,
        items=texts,
        num_queries=num_queries,
        outputs=OutputKind.MULTI_VECTOR,
        context=RequestContext(),
        **how,
    )
    tokens = asyncio.run(pipeline.token_ids(work, RequestClass.INTERACTIVE))
    return [ids.tolist() for ids in np.split(tokens.token_ids, tokens.offsets[1:-1])]


def texts_of(*counts: int) -> list[str]:
    return [" ".join(f"w{10 + number % 30}" for number in range(count)) for count in counts]


def library_ids(encoder: MultiVectorEncoder, texts: Sequence[str], *, task: str) -> list[list[int]]:
    found = []
    for text in texts:
        prepared = encoder.preprocess([text], prompt=encoder.prompts.get(task), task=task)
        found.append(prepared["input_ids"][0].tolist())
    return found


FRAMES = ("$A", "[CLS] $A", "$A [SEP]", "[CLS] $A [SEP]", "$A [SEP] [EOS]", "[BOS] [CLS] $A")
_COUNTS = (1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 40)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("prompts", [{"query": "[Q] ", "document": "[D] "}, {"query": "w30 "}, {}])
def test_ids_are_those_of_sentence_transformers(tmp_path: Path, frame: str, prompts: dict[str, str]) -> None:
    bare = save("bert", tmp_path / "bare")
    tokenizer_with(frame).save_pretrained(bare)
    expansion = {"strategy": "fixed", "attend": False, "length": 10}
    transformer = Transformer(str(bare), query_expansion=expansion, document_length=12)
    encoder = MultiVectorEncoder(modules=[transformer, MultiVectorMask()], prompts=prompts, device="cpu")
    encoder.save_pretrained(str(tmp_path / "saved"), create_model_card=False)

    texts = texts_of(*_COUNTS)
    expected = [each for task in ("query", "document") for each in library_ids(encoder, texts, task=task)]

    assert own_ids(tmp_path / "saved", [*texts, *texts], num_queries=len(texts)) == expected


def of_pylate(ids: list[int], frame: str, marker_id: int, *, length: int, fill: bool) -> list[int]:
    """As pylate 1.6.0 makes it of the tokens of a text: its tokenizer cuts, a marker follows the first token."""
    before, _, after = frame.partition("$A")
    first, last = [[_SPECIAL.index(word) for word in part.split()] for part in (before, after)]
    cut = [*first, *ids[: length - 1 - len(first) - len(last)], *last]
    made = [*cut[:1], marker_id, *cut[1:]]
    return made + [_SPECIAL.index("[MASK]")] * (length - len(made) if fill else 0)


@pytest.mark.parametrize("frame", FRAMES)
def test_ids_are_those_of_pylate(tmp_path: Path, frame: str) -> None:
    pylate(tmp_path)
    change(tmp_path / CONFIG, query_length=10, document_length=12, query_prefix="[Q]", document_prefix="[D]")
    tokenizer_with(frame).save_pretrained(tmp_path)
    texts = texts_of(*_COUNTS)
    ids = [[int(word[1:]) for word in text.split()] for text in texts]

    found = own_ids(tmp_path, [*texts, *texts], num_queries=len(texts))

    marks = [_SPECIAL.index(marker) for marker in ("[Q]", "[D]")]
    assert found[: len(texts)] == [of_pylate(each, frame, marks[0], length=10, fill=True) for each in ids]
    assert found[len(texts) :] == [of_pylate(each, frame, marks[1], length=12, fill=False) for each in ids]


@pytest.mark.parametrize("frame", FRAMES)
def test_the_start_of_a_text_is_cut_inside_of_the_special_tokens(tmp_path: Path, frame: str) -> None:
    pylate(tmp_path)
    change(tmp_path / CONFIG, query_length=10, document_length=12, query_prefix="", document_prefix="")
    tokenizer_with(frame).save_pretrained(tmp_path)
    before, _, after = (part.split() for part in frame.partition("$A"))

    (found,) = own_ids(tmp_path, texts_of(30), num_queries=0, truncation=Truncation.LEFT)

    first, last = [[_SPECIAL.index(word) for word in part] for part in (before, after)]
    kept = 12 - len(first) - len(last)
    assert found == [*first, *range(40 - kept, 40), *last]


def test_what_must_not_be_cut_is_refused_by_its_number(tmp_path: Path) -> None:
    pylate(tmp_path)
    change(tmp_path / CONFIG, query_length=10, document_length=12, query_prefix="[Q]", document_prefix="[D]")
    tokenizer_with("$A [SEP]").save_pretrained(tmp_path)
    texts = texts_of(8, 10, 11)
    assert [len(ids) for ids in own_ids(tmp_path, texts[:2], num_queries=1, truncation=Truncation.NONE)] == [10, 12]
    for num_queries, index, limit in ((1, 2, 11), (2, 1, 9)):
        with pytest.raises(TextRefused) as refused:
            own_ids(tmp_path, texts, num_queries=num_queries, truncation=Truncation.NONE)
        assert (refused.value.reason, refused.value.index) == (TextRefusal.TOO_LONG, index)
        assert refused.value.max_tokens == limit
