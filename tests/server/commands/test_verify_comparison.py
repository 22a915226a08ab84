"""`embedline verify` against the library: the same rows, rows that are not, and what can't be compared."""

import json
import re
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import normalizers
from transformers import BertTokenizer, BigBirdConfig, BigBirdForSequenceClassification, BigBirdModel, LlamaTokenizer

from engine.fused.quantization import gate_texts
from engine.model.coverage import Use
from engine.model.tasks import Task
from engine.types import ModelError
from server.features.verify import comparison
from server.features.verify import library as references
from server.features.verify.comparison import verify
from server.features.verify.inputs import VerifyTexts
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.model_plan import ModelPlan
from tests.engine.tiny_models import VOCAB_SIZE, save
from tests.parity import folders
from tests.parity.repositories.own_code import gte
from tests.server_e2e.expected import minilm
from tests.tiers import full

pytestmark = pytest.mark.usefixtures("cache")
FEW = tuple(gate_texts.texts())[::4]


@pytest.fixture(autouse=True)
def _few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is computed by the library alone, which takes long."""
    monkeypatch.setattr(gate_texts, "texts", lambda: FEW)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return with_letters(save("bert", tmp_path / "model"))


def with_letters(folder: Path) -> Path:
    """A tokenizer that has something to say of real texts."""
    pieces = [prefix + letter for letter in string.ascii_lowercase + string.digits for prefix in ("", "##")]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]
    assert len(words) <= VOCAB_SIZE
    BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(folder)
    return folder


def with_flags(folder: Path, *, lowercase: bool, backend: str | None) -> Path:
    """As e5-mistral's: flags that transformers 5 passes over. `lowercase`: a step of tokenizer.json that it drops.
    `backend`: "tokenizers" where transformers 5 is to have saved it, which would not have such a step.
    """
    pieces = ["<unk>", "<s>", "</s>", "▁", *string.ascii_letters, *string.digits, *".,;:!?'-()"]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    LlamaTokenizer(vocab=vocab, merges=[], pad_token="</s>").save_pretrained(folder)
    if lowercase:
        steps = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        steps.normalizer = normalizers.Lowercase()
        steps.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"backend": backend, "add_bos_token": True, "add_eos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def settings(model: Path, **others: Any) -> Settings:
    fields = {"devices": "cpu", "engine": "transformers", **others}
    return Settings(models=(ModelSettings(model_id=str(model), **fields),))


def facts(capsys: pytest.CaptureFixture[str], model: Path, *, code: int = 0, **others: Any) -> Any:
    assert verify(settings(model, **others), as_json=True) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("pooling", [None, *full("cls", "last-token")])
def test_a_good_model(pooling: str | None, capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    if pooling is None:  # else --pooling is for a folder without modules
        modules = [Transformer(str(tiny)), Pooling(32, "mean")]
        SentenceTransformer(modules=modules, device="cpu", truncate_dim=5).save_pretrained(str(tiny))
    found = facts(capsys, tiny, pooling=pooling)
    assert found["passed"]
    assert found["token_ids"] == "the same"
    assert found["cosine"]["minimum"] >= 0.999999
    assert found["largest_difference"] < 1e-4 * found["largest_value"]
    assert (found["engine"], found["dtype"], found["task"]) == ("transformers", "float32", "embed")
    assert found["texts"].startswith(f"{len(FEW) + 1}, ")
    assert found["longest"] == "up to about 64 of 64 tokens"


@pytest.mark.parametrize("scores", [False, True])
def test_a_class_that_keeps_state(scores: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """BigBird's, whose library is asked for long texts after short ones."""
    shared: Any = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    sizes: Any = {**shared, "num_hidden_layers": 2, "initializer_range": 0.2, "max_position_embeddings": 256}
    config = BigBirdConfig(**sizes, block_size=16, num_random_blocks=2, pad_token_id=0)
    model = BigBirdForSequenceClassification(config) if scores else BigBirdModel(config)
    model.save_pretrained(tmp_path / "model")
    found = facts(capsys, with_letters(tmp_path / "model"))
    assert found["passed"]
    assert found["longest"] == "up to about 256 of 256 tokens"


@pytest.mark.parametrize(
    "use", [Use.RERANK, *full(Use.SPARSE, Use.CLASSIFY, Use.TOKEN_CLASSIFY), Use.GENERATIVE_RERANK]
)
def test_every_task_has_its_reference(use: Use, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if use is Use.GENERATIVE_RERANK:
        folder = folders.save("Qwen3", use, tmp_path)
    else:
        folder = with_letters(folders.save("BERT", use, tmp_path))
    if use is Use.RERANK:  # for which transformers 4 made types of tokens, and 5 makes none
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    found = facts(capsys, folder)
    assert found["passed"], found
    assert found["task"] == (Task.RERANK if use is Use.GENERATIVE_RERANK else Task(use))
    assert ("leaves out the types of tokens" in found["token_ids"]) is (use is Use.RERANK)


def test_late_interaction_has_its_reference(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Markers, expansion of queries and tokens that do not count, as the library saves them."""
    bare = with_letters(save("bert", tmp_path / "bare"))
    expansion = {"strategy": "fixed", "attend": False, "token": "[MASK]", "length": 20}
    modules = [
        Transformer(str(bare), query_expansion=expansion, document_length=30),
        MultiVectorMask(skiplist_words=["a", "7"]),
        Normalize(module_input_name="token_embeddings"),
    ]
    markers = {"query": "q ", "document": "d "}
    MultiVectorEncoder(modules=modules, prompts=markers, device="cpu").save_pretrained(str(tmp_path / "late"))
    found = facts(capsys, tmp_path / "late")
    assert found["passed"], found
    assert found["task"] == "late-interaction"


def test_other_rows_are_noticed(
    capsys: pytest.CaptureFixture[str], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_rows = references.rows_of

    def shifted(plan: ModelPlan, asked: VerifyTexts) -> references.Reference:
        found = true_rows(plan, asked)
        found.rows[7, 3] += 0.01 * np.abs(found.rows).max()
        return found

    monkeypatch.setattr(references, "rows_of", shifted)
    found = facts(capsys, tiny, code=1)
    assert not found["passed"]
    assert found["cosine"]["median"] > 0.999999 > found["cosine"]["minimum"]
    assert verify(settings(tiny), as_json=False) == 1
    assert "BELOW the limits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lowercase", "backend", "said"),
    [
        (False, None, r"transformers 5\S+ passes over this: <s> before and </s> after each text \("),
        (
            True,
            None,
            r".*; transformers 5\S+ has another normalizer than tokenizer\.json, which is taken as it stands",
        ),
        (True, "tokenizers", r"other ids: \d+ of \d+ texts differ; of the first of them, text \d+, from token \d"),
    ],
)
def test_other_ids_of_the_library_are_named(
    lowercase: bool, backend: str | None, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = with_flags(save("llama", tmp_path / "model"), lowercase=lowercase, backend=backend)
    is_known = backend is None
    found = facts(capsys, folder, pooling="last-token", code=int(not is_known))
    assert found["cosine"]["minimum"] > 0.999999, "its rows are of our ids"
    assert found["passed"] is is_known
    assert re.match(said, found["token_ids"])


@pytest.mark.parametrize("engine", ["transformers", *full("openvino")])
def test_words_of_the_models_own_code_are_not_verified(
    engine: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = gte.FORMS["gte-multilingual-base"].save(tmp_path)
    found = facts(capsys, with_letters(folder), engine=engine)
    assert found["passed"]
    assert found["token_ids"] == "the same"
    assert found["against"] == "gte of the transformers engine, in float32 on a CPU, one text at a time"
    assert "own code" in found["not_verified"]
    assert facts(capsys, with_letters(save("bert", tmp_path / "other")))["not_verified"] is None


def test_scores_are_compared_over_all_texts() -> None:
    """One score a text has no direction of its own, so all of a label's are one row."""
    scores = np.array([[1.0], [2.0], [3.0]], np.float32)
    assert comparison._cosines(scores.T, 2 * scores.T) == pytest.approx(1)
    assert comparison._cosines(scores.T, scores[::-1].T) < 0.9


def test_what_has_no_reference(tiny: Path) -> None:
    with pytest.raises(ModelError, match="nothing to verify"):
        verify(settings(tiny, engine="fake"), as_json=False)


@pytest.mark.full
def test_the_default_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(settings(minilm()), as_json=False) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "verdict the same rows" in shown
    assert "cosine minimum 1.0000000" in shown
