"""Folders that sentence-transformers has written as each of its classes, Routers too: what is found in them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modality import InputFormatter
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SpladePooling
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from engine.model import model_folder
from engine.model.model_folder import ModelFolder
from engine.model.sentence_files import chat_pairs
from engine.model.tasks import (
    Activation,
    LateInteraction,
    SequenceScores,
    Task,
    TokenTable,
    TokenVectors,
    VocabularyWeights,
)
from engine.types import ModelError, OutputKind
from tests.engine.folder_files import change, write
from tests.engine.model.sentence_folder import refusal
from tests.engine.transformers.routed_models import bare as bare_in
from tests.engine.transformers.routed_models import inference_free, same_for_both

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[Q]", "[D]", ".", "!")
SIZES = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}


@pytest.fixture
def bare(tmp_path: Path) -> Callable[..., str]:
    """Makes a folder with a tiny BERT of the given class and a tokenizer."""

    def make(library_class: type = AutoModel, **labels: int) -> str:
        folder = tmp_path / "bare"
        config = AutoConfig.for_model("bert", **SIZES, max_position_embeddings=64, **labels)
        library_class.from_config(config).save_pretrained(folder)  # type: ignore[attr-defined]
        names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
        wrapped = PreTrainedTokenizerFast(tokenizer_object=words(), **names)  # type: ignore[no-untyped-call]
        wrapped.save_pretrained(folder)
        return str(folder)

    return make


def words() -> Tokenizer:
    known = {word: number for number, word in enumerate(SPECIAL)}
    tokenizer = Tokenizer(WordLevel(known | {f"w{number}": number for number in range(9, 40)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL[:7]))
    return tokenizer


def read_saved(model: nn.Module, folder: Path) -> ModelFolder:
    model.save_pretrained(str(folder), create_model_card=False)  # type: ignore[operator]
    return model_folder.read(folder)


def test_a_cross_encoder(bare: Callable[..., str], tmp_path: Path) -> None:
    path = bare(AutoModelForSequenceClassification, num_labels=1)
    found = read_saved(CrossEncoder(path, device="cpu"), tmp_path / "model")
    assert (found.task, found.activation) == (Task.RERANK, Activation.SIGMOID)
    assert found.heads == (SequenceScores(labels=("LABEL_0",)),)
    assert found.outputs is OutputKind.LOGITS

    found = read_saved(CrossEncoder(path, device="cpu", activation_fn=nn.Identity()), tmp_path / "other")
    assert found.activation is Activation.IDENTITY


def test_a_sparse_encoder(bare: Callable[..., str], tmp_path: Path) -> None:
    chain = [Transformer(bare(AutoModelForMaskedLM), transformer_task="fill-mask"), SpladePooling("sum", "log1p_relu")]
    found = read_saved(SparseEncoder(modules=chain, device="cpu", max_active_dims=3), tmp_path / "model")
    assert (found.task, found.max_active_dims) == (Task.SPARSE, 3)
    assert found.heads == (VocabularyWeights(pooling="sum", activation="log1p_relu"),)
    assert found.outputs is OutputKind.SPARSE


def test_static_embeddings(tmp_path: Path) -> None:
    chain: list[nn.Module] = [StaticEmbedding(words(), embedding_dim=12), Normalize()]
    found = read_saved(SentenceTransformer(modules=chain, device="cpu"), tmp_path / "model")
    assert (found.task, found.is_static, found.normalize) == (Task.EMBED, True, True)
    assert (found.hidden_size, found.dimensions, found.vocab_size) == (12, 12, 40)
    assert (tmp_path / "model" / found.tokenizer_folder / "tokenizer.json").is_file()
    assert (found.weights_folder / "model.safetensors").is_file()


def test_a_multi_vector_encoder(bare: Callable[..., str], tmp_path: Path) -> None:
    expansion = {"strategy": "fixed", "attend": False, "length": 16}
    chain = [
        Transformer(bare(), query_expansion=expansion, document_length=30),
        Dense(16, 8, bias=False, activation_function=nn.Identity(), module_input_name="token_embeddings"),
        MultiVectorMask(skiplist_words=[".", "!"]),
        Normalize(module_input_name="token_embeddings"),
    ]
    prompts = {"query": "[Q] ", "document": "[D] "}
    model = MultiVectorEncoder(modules=chain, device="cpu", prompts=prompts)
    found = read_saved(model, tmp_path / "model")
    (head,) = found.heads
    assert isinstance(head, TokenVectors)
    assert (found.task, head.dimensions, head.normalize, found.prompts) == (Task.LATE_INTERACTION, 8, True, {})
    assert found.late == LateInteraction(
        query_marker_id=5,
        document_marker_id=6,
        marks_text_start=True,
        query_length=16,
        expansion_id=4,
        document_length=30,
        skipped_ids=(7, 8),
    )
    # what the library makes of a query and a document is as that says
    query = model.preprocess(["w20 w21"], prompt="[Q] ", task="query")
    document = model.preprocess(["w20 ."], prompt="[D] ")
    assert query["input_ids"][0, :4].tolist() == [5, 20, 21, 4]
    assert query["input_ids"].shape[1] == 16
    assert document["input_ids"][0].tolist() == [6, 20, 7]


def test_prompts_that_are_left_out_of_the_pooling(bare: Callable[..., str], tmp_path: Path) -> None:
    chain = [Transformer(bare()), Pooling(16, "mean", include_prompt=False)]
    model = SentenceTransformer(modules=chain, device="cpu", prompts={"query": "w9 "}, default_prompt_name="query")
    model.similarity_fn_name = "dot"
    found = read_saved(model, tmp_path / "model")
    assert (found.include_prompt, found.default_prompt) == (False, "w9 ")
    assert found.notes == ("its rows are made to be compared by dot (similarity_fn_name)",)


def test_routes_are_refused_with_the_folder_of_one(bare: Callable[..., str], tmp_path: Path) -> None:
    document = [Transformer(bare()), Pooling(16, "mean")]
    router = Router.for_query_document([StaticEmbedding(words(), embedding_dim=16)], document)
    model = SentenceTransformer(modules=[router], device="cpu")
    with pytest.raises(ModelError, match=r"a Router, .*: --model-id \S+ with --pooling$") as refused:
        read_saved(model, tmp_path / "model")
    named = str(refused.value).split('"')[1]
    assert model_folder.read(named, pooling="mean").dimensions == 16


QUERY = "query_0_SparseStaticEmbedding"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    inference_free(folder)
    return folder


@pytest.fixture
def routed(saved: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return shutil.copytree(saved, tmp_path / "model")


def test_queries_without_inference(saved: Path) -> None:
    found = model_folder.read(saved)
    assert (found.task, found.task_source) == (Task.SPARSE, "document_1_SpladePooling/config.json")
    assert found.outputs is OutputKind.SPARSE
    assert found.heads == (VocabularyWeights(activation="log1p_relu"),)
    assert found.query_table is not None
    assert (found.query_table.folder, sorted(found.query_table.surrounding_ids)) == (QUERY, [2, 3])
    assert (found.path, found.tokenizer_folder) == (saved, "document_0_Transformer")
    assert (found.weights_folder / "model.safetensors").is_file()
    assert found.max_seqlen == 64


def test_a_transformer_in_the_folder_itself(routed: Path) -> None:
    """As opensearch-neural-sparse-encoding-doc has it, with the older class."""
    for file in (routed / "document_0_Transformer").iterdir():
        file.rename(routed / file.name)
    config = json.loads((routed / "router_config.json").read_text())
    del config["types"]["document_0_Transformer"]
    config["types"][""] = "sentence_transformers.sparse_encoder.models.MLMTransformer.MLMTransformer"
    config["structure"]["document"][0] = ""
    write(routed / "router_config.json", config)

    found = model_folder.read(routed)

    assert (found.task, found.tokenizer_folder) == (Task.SPARSE, "")
    assert found.query_table == TokenTable(folder=QUERY, surrounding_ids=found.query_table.surrounding_ids)  # type: ignore[union-attr]


def test_routes_of_the_same_files(tmp_path: Path) -> None:
    same_for_both(tmp_path / "model")
    found = model_folder.read(tmp_path / "model")
    assert (found.task, found.pooling, found.normalize, found.dimensions) == (Task.EMBED, "mean", True, 32)
    assert (found.tokenizer_folder, found.query_table) == ("query_0_Transformer", None)


def test_routes_after_a_shared_transformer_are_refused(tmp_path: Path) -> None:
    shared = [Transformer(bare_in(tmp_path / "bare", AutoModel)), Pooling(32, "mean")]
    router = Router.for_query_document([Dense(32, 8)], [Dense(32, 8)])
    model = SentenceTransformer(modules=[*shared, router, Normalize()], device="cpu")
    model.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    assert refusal(tmp_path / "model") == "modules.json has a Router, whose routes are models of their own"


def routes(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder / "router_config.json", **changes)


def other_words(folder: Path) -> None:
    change(folder / QUERY / "tokenizer.json", normalizer={"type": "Lowercase"})


@pytest.mark.parametrize(
    ("spoil", "part"),
    [
        (routes(parameters={"route_mappings": {"('query', None)": "document"}}), 'one route: --model-id "'),
        (routes(parameters={"route_mappings": {"[1]": "document", "('a', [])": "query"}}), 'one route: --model-id "'),
        (routes(structure={"query": [QUERY], "passage": ["document_0_Transformer"]}), "one route: "),
        (routes(structure={"query": [QUERY], "document": ["document_0_Transformer"]}), "one route: "),
        (routes(structure={"query": [QUERY]}), "one route: "),
        (routes(structure={"query": ["elsewhere"]}), "one route: "),
        (routes(structure={"query": []}), "one route: "),
        (routes(structure={"query": 7}), "one route: "),
        (routes(structure=[7]), "'structure'"),
        (routes(types=[7]), "'types'"),
        (routes(types={"../x": "a"}, structure={"query": ["../x"]}), "router_config.json has a path that leads out"),
        (lambda folder: write(folder / "router_config.json", {}), "whose routes are models of their own"),
        (other_words, f"have different tokenizers ({QUERY}/tokenizer.json)"),
        (lambda folder: (folder / QUERY / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda folder: (folder / QUERY / "model.safetensors").unlink(), f"{QUERY} has no model.safetensors"),
        (lambda folder: change(folder / QUERY / "config.json", path="idf.json"), "save it with its weights"),
        (
            lambda folder: change(folder / "document_0_Transformer" / "sentence_bert_config.json", do_lower_case=True),
            "have different tokenizers",
        ),
    ],
)
def test_routes_that_cannot_be_served(spoil: Callable[[Path], object], part: str, routed: Path) -> None:
    spoil(routed)
    assert part in refusal(routed)


@pytest.mark.parametrize(
    ("template", "model_type", "is_flat"),
    [
        ("{{ messages[0].content }}", "qwen3", True),
        ("{{ messages[0].content[0].text }}", "qwen3", False),
        ("{% for part in m.content if part.type == 'text' %}", "qwen3", False),
        ("{% for part in m.content if part.type == 'text' %}", "gpt_oss", True),
        ([{"name": "default", "template": "{{ messages[0].content }}"}], "qwen3", False),
        (None, "qwen3", False),
    ],
)
def test_the_form_of_messages_where_files_do_not_say(
    tmp_path: Path, template: Any, model_type: str, is_flat: bool
) -> None:
    """The library's own rule is asked too."""
    write(tmp_path / "tokenizer_config.json", {"chat_template": template} if template else {})
    told = {"modality_config": {"message": {"method": "forward", "method_output_name": "logits"}}}
    found = chat_pairs(told, tmp_path, model_type)
    library = InputFormatter(model_type, processor=SimpleNamespace(chat_template=template))
    assert found is not None
    assert (found.is_flat, library.message_format == "flat") == (is_flat, is_flat)
