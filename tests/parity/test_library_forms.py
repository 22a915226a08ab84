"""What `save_pretrained` of sentence-transformers 6.2 writes for each of its classes and modules, made by the library:
served as the library serves it (`embedline verify` compares), or refused by the name of what is not served."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling, MultiVectorMask
from sentence_transformers.sentence_transformer.modules import (
    CNN,
    LSTM,
    Dropout,
    LayerNorm,
    Pooling,
    StaticEmbedding,
    WeightedLayerPooling,
)
from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder, SparseStaticEmbedding, SpladePooling
from tokenizers import Tokenizer
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from engine.fused.quantization import gate_texts
from engine.model import model_folder
from engine.model.tasks import Task
from server.features.verify.comparison import verify
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from tests.engine.engines import refusal
from tests.tiers import full_but
from tests.tokenizer_pool.builders import byte_level, word_piece
from tokenizer_pool.chat_pairs import check_texts
from wire.tokenizer_files import TokenizerError

pytestmark = [pytest.mark.usefixtures("cache"), pytest.mark.holds("What a model is for")]
_PIECES, _BYTES = word_piece(lowercase=True), byte_level()  # a second training may order what is equal in another way
FEW = tuple(gate_texts.texts())[::12]
WIDTH = 32
_SIZES: dict[str, Any] = {
    **{"hidden_size": WIDTH, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2},
    **{"max_position_embeddings": 64, "initializer_range": 0.2},
}
_IDENTITY = nn.Identity()
_ROWS_OF_TOKENS: dict[str, Any] = {"module_input_name": "token_embeddings"}
SIDES = {"query": "query: ", "document": "passage: "}
MARKERS = {"query": "[Q] ", "document": "[D] "}


@pytest.fixture(autouse=True)
def _few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_texts, "texts", lambda: FEW)


class Bare:
    """Makes modules over tiny models."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tokenizer(self, *, is_causal: bool = False) -> Any:
        backend = Tokenizer.from_str((_BYTES if is_causal else _PIECES).to_str())
        if is_causal:
            backend.add_special_tokens(["<|end|>", "<|pad|>"])
            names = {"eos_token": "<|end|>", "pad_token": "<|pad|>"}
        else:
            backend.add_special_tokens(["[Q] ", "[D] "])
            names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
        return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=64, **names)  # type: ignore[no-untyped-call]

    def transformer(
        self, kind: Any = AutoModel, *, of: str = "bert", num_labels: int = 1, **options: Any
    ) -> Transformer:
        torch.manual_seed(1)
        tokenizer = self.tokenizer(is_causal=of != "bert")
        of_heads = {} if of == "bert" else {"num_key_value_heads": 2, "head_dim": 8}
        sizes = {
            **_SIZES,
            **of_heads,
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "num_labels": num_labels,
        }
        place = self.folder / f"bare {len(list(self.folder.iterdir()))}"
        kind.from_config(AutoConfig.for_model(of, **sizes)).save_pretrained(place)
        tokenizer.save_pretrained(place)
        made: Transformer = Transformer(str(place), **options)
        return made

    def table(self) -> StaticEmbedding:
        torch.manual_seed(2)
        return StaticEmbedding(Tokenizer.from_str(_PIECES.to_str()), embedding_dim=WIDTH)

    def late(self, *, layer: bool = True, mask: dict[str, Any] | None = None, **options: Any) -> list[Any]:
        dense = Dense(WIDTH, 8, bias=False, activation_function=_IDENTITY, **_ROWS_OF_TOKENS)
        return [
            self.transformer(**options),
            *([dense] if layer else []),
            MultiVectorMask(**(mask or {})),
            Normalize(**_ROWS_OF_TOKENS),
        ]


Made = Callable[[Bare], Any]


def embeds(*modules: Callable[[Bare], Any], **options: Any) -> Made:
    return lambda bare: SentenceTransformer(modules=[make(bare) for make in modules], device="cpu", **options)


def bert(**options: Any) -> Callable[[Bare], Any]:
    return lambda bare: bare.transformer(**options)


def always(make: Callable[[], Any]) -> Callable[[Bare], Any]:
    return lambda bare: make()


def late(prompts: dict[str, str] | None = None, **options: Any) -> Made:
    return lambda bare: MultiVectorEncoder(modules=bare.late(**options), device="cpu", prompts=prompts)


def scores(kind: Any, task: Any, *heads: Any, of: str = "bert", **options: Any) -> Made:
    return lambda bare: CrossEncoder(
        modules=[bare.transformer(kind, of=of, transformer_task=task), *heads], device="cpu", **options
    )


def sparse(*rest: Any, **options: Any) -> Made:
    return lambda bare: SparseEncoder(
        modules=[bare.transformer(AutoModelForMaskedLM, transformer_task="fill-mask"), *rest], device="cpu", **options
    )


def inference_free(bare: Bare) -> Any:
    tokenizer = bare.tokenizer()
    torch.manual_seed(3)
    query: list[Any] = [SparseStaticEmbedding(tokenizer, torch.rand(len(tokenizer)))]
    document: list[Any] = [bare.transformer(AutoModelForMaskedLM, transformer_task="fill-mask"), SpladePooling("max")]
    return SparseEncoder(modules=[Router.for_query_document(query, document)], device="cpu")


def routed(query: Sequence[Callable[[Bare], Any]], document: Sequence[Callable[[Bare], Any]]) -> Made:
    def make(bare: Bare) -> Any:
        router = Router.for_query_document([each(bare) for each in query], [each(bare) for each in document])
        return SentenceTransformer(modules=[router], device="cpu")

    return make


def by_modality(mappings: dict[Any, str], *, text: str = "text", default: str | None = None) -> Made:
    """Texts take one route, and what is no text another, whose model is another."""

    def make(bare: Bare) -> Any:
        routes: dict[str, list[Any]] = {
            "image": [bare.transformer(of="qwen3"), Pooling(WIDTH, "mean")],
            text: [bare.transformer(), Pooling(WIDTH, "cls")],
        }
        router = Router(sub_modules=routes, route_mappings=mappings, default_route=default)
        return SentenceTransformer(modules=[router, Normalize()], device="cpu")

    return make


_PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def with_chat(make: Made, template: str = "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}") -> Made:
    """The first module's tokenizer has a chat template, as most language models have one."""

    def made(bare: Bare) -> Any:
        saved = bare.transformer
        bare.transformer = lambda *a, **k: _chatting(saved(*a, **k), template, k)  # type: ignore[method-assign]
        return make(bare)

    def _chatting(first: Transformer, template: str, options: dict[str, Any]) -> Transformer:
        place = str(first.config.name_or_path)
        Path(place, "chat_template.jinja").write_text(template)
        task = options.get("transformer_task", "feature-extraction")
        chatting: Transformer = Transformer(place, transformer_task=task)
        return chatting

    return made


_MEAN = always(lambda: Pooling(WIDTH, "mean"))
SERVED: dict[str, tuple[Made, Task]] = {
    "a score of a pooled row": (
        lambda bare: CrossEncoder(
            modules=[
                bare.transformer(),
                Pooling(WIDTH, "cls"),
                Dense(WIDTH, 1, activation_function=_IDENTITY, module_output_name="scores"),
            ],
            device="cpu",
        ),
        Task.RERANK,
    ),
    "mean": (embeds(bert(), _MEAN, prompts=SIDES, default_prompt_name="query"), Task.EMBED),
    "two poolings, a chain": (
        embeds(
            bert(),
            always(lambda: Pooling(WIDTH, ("cls", "max"))),
            always(lambda: Dense(2 * WIDTH, 12)),
            always(lambda: LayerNorm(12)),
            always(lambda: Dropout(0.1)),
            always(Normalize),
        ),
        Task.EMBED,
    ),
    "cut": (embeds(bert(), _MEAN, truncate_dim=8), Task.EMBED),
    "a prompt that is left out": (
        embeds(
            bert(),
            always(lambda: Pooling(WIDTH, "mean", include_prompt=False)),
            prompts={"q": "a b "},
            default_prompt_name="q",
        ),
        Task.EMBED,
    ),
    "a prompt in a chat template, which counts": (
        with_chat(
            embeds(
                bert(of="qwen3"),
                always(lambda: Pooling(WIDTH, "mean", include_prompt=False)),
                prompts=SIDES,
                default_prompt_name="query",
            ),
            _PLAIN,
        ),
        Task.EMBED,
    ),
    "lower case, short": (embeds(bert(do_lower_case=True, max_seq_length=20), _MEAN), Task.EMBED),
    "a decoder": (embeds(bert(of="qwen3"), always(lambda: Pooling(WIDTH, "lasttoken")), always(Normalize)), Task.EMBED),
    "a table": (embeds(lambda bare: bare.table()), Task.EMBED),
    "a table, a chain": (
        embeds(lambda bare: bare.table(), always(lambda: Dense(WIDTH, 8)), always(Normalize)),
        Task.EMBED,
    ),
    "a cross-encoder": (scores(AutoModelForSequenceClassification, "sequence-classification"), Task.RERANK),
    "a cross-encoder with a prompt": (
        scores(
            AutoModelForSequenceClassification,
            "sequence-classification",
            activation_fn=_IDENTITY,
            prompts={"w": "a b "},
            default_prompt_name="w",
        ),
        Task.RERANK,
    ),
    "an answer, in plain pairs": (
        scores(AutoModelForCausalLM, "text-generation", LogitScore(40, 50), of="qwen3"),
        Task.RERANK,
    ),
    "SPLADE": (sparse(SpladePooling("max"), prompts=SIDES), Task.SPARSE),
    "SPLADE, a sum": (sparse(SpladePooling("sum", "log1p_relu"), max_active_dims=5), Task.SPARSE),
    "queries without inference": (inference_free, Task.SPARSE),
    "a route of texts": (by_modality({(None, "text"): "text", (None, ("text", "image")): "image"}), Task.EMBED),
    "a route of texts by its name": (by_modality({}), Task.EMBED),
    "a route of all": (by_modality({(None, "image"): "image", (None, None): "other"}, text="other"), Task.EMBED),
    "late": (late(), Task.LATE_INTERACTION),
    "late without a layer": (late(layer=False), Task.LATE_INTERACTION),
    "late with markers": (late(MARKERS), Task.LATE_INTERACTION),
    "late with prompts": (late(SIDES), Task.LATE_INTERACTION),
    "late, filled up": (
        late(MARKERS, query_expansion={"strategy": "fixed", "attend": False, "length": 24}, document_length=40),
        Task.LATE_INTERACTION,
    ),
    "late, filled up and seen": (
        late(MARKERS, query_expansion={"strategy": "fixed", "attend": True, "length": 24}),
        Task.LATE_INTERACTION,
    ),
    "late, another token": (
        late(query_expansion={"strategy": "fixed", "attend": True, "length": 24, "token": "[PAD]"}),
        Task.LATE_INTERACTION,
    ),
    "late, filled up to a least length": (
        late(MARKERS, query_expansion={"strategy": "min", "attend": False, "length": 24}),
        Task.LATE_INTERACTION,
    ),
    "late, filled up to a least length and cut": (
        late(SIDES, query_expansion={"strategy": "min", "attend": True, "length": 24}, query_length=30),
        Task.LATE_INTERACTION,
    ),
    "late, filled up beyond the length of texts": (
        late(max_seq_length=20, query_expansion={"strategy": "min", "attend": False, "length": 28}),
        Task.LATE_INTERACTION,
    ),
    "late, lengths": (late(query_length=12, document_length=30), Task.LATE_INTERACTION),
    "late, words left out": (late(mask={"skiplist_words": [".", ",", "the"]}), Task.LATE_INTERACTION),
}
REFUSED: dict[str, tuple[Made, str]] = {
    "an LSTM": (embeds(bert(), always(lambda: LSTM(WIDTH, 8)), always(lambda: Pooling(16, "mean"))), "LSTM"),
    "a CNN": (embeds(bert(), always(lambda: CNN(WIDTH, 8)), always(lambda: Pooling(24, "mean"))), "CNN"),
    "layers weighted": (
        embeds(bert(), always(lambda: WeightedLayerPooling(WIDTH, num_hidden_layers=2)), _MEAN),
        "WeightedLayerPooling",
    ),
    "tokens pooled": (
        lambda bare: MultiVectorEncoder(modules=[*bare.late(), HierarchicalTokenPooling(2)], device="cpu"),
        "HierarchicalTokenPooling",
    ),
    "words left out of queries": (
        late(mask={"skiplist_words": ["."], "skiplist_tasks": ["query", "document"]}),
        "MultiVectorMask",
    ),
    "some tokens alone": (late(mask={"keep_only_token_ids": [5]}), "MultiVectorMask"),
    "a sparse layer": (
        lambda bare: SparseEncoder(
            modules=[bare.transformer(), Pooling(WIDTH, "mean"), SparseAutoEncoder(WIDTH, 64, 4)], device="cpu"
        ),
        "SparseAutoEncoder",
    ),
    "words without inference": (
        lambda bare: SparseEncoder(
            modules=[SparseStaticEmbedding(bare.tokenizer(), torch.rand(len(bare.tokenizer())))],
            device="cpu",
        ),
        "SparseStaticEmbedding",
    ),
    "two models": (routed([bert(), _MEAN], [bert(of="qwen3"), _MEAN]), "Router"),
    "a table and a model": (routed([lambda bare: bare.table()], [bert(), _MEAN]), "Router"),
    "a route that texts take by default alone": (by_modality({(None, "image"): "image"}, text="a"), "Router"),
    "a route of queries": (by_modality({("query", "text"): "image", (None, "text"): "text"}), "Router"),
    "a chat template, several labels": (
        with_chat(
            lambda bare: CrossEncoder(
                modules=[
                    bare.transformer(
                        AutoModelForSequenceClassification, transformer_task="sequence-classification", num_labels=3
                    )
                ],
                device="cpu",
            )
        ),
        "several labels",
    ),
    "a prompt that is left out of a score": (
        lambda bare: CrossEncoder(
            modules=[
                bare.transformer(),
                Pooling(WIDTH, "mean", include_prompt=False),
                Dense(WIDTH, 1, activation_function=_IDENTITY, module_output_name="scores"),
            ],
            device="cpu",
        ),
        "'include_prompt' in 1_Pooling/config.json is false",
    ),
    "another output": (
        embeds(bert(), always(lambda: Dense(WIDTH, 8, **_ROWS_OF_TOKENS)), always(lambda: Pooling(8, "mean"))),
        "modules.json lists Transformer, Dense, Pooling",
    ),
}


def saved(make: Made, tmp_path: Path) -> Path:
    (tmp_path / "bare").mkdir()
    make(Bare(tmp_path / "bare")).save_pretrained(str(tmp_path / "model"), create_model_card=False)
    return tmp_path / "model"


@pytest.mark.parametrize(
    "name",
    full_but(("mean", "an answer, in plain pairs", "late, filled up to a least length", "a route of texts"), SERVED),
)
def test_served_as_the_library_does(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, task = SERVED[name]
    folder = saved(make, tmp_path)
    read = model_folder.read(folder)
    assert read.task is task
    engine = "static" if read.is_static else "transformers"
    model = ModelSettings(model_id=str(folder), devices="cpu", engine=engine)
    code = verify(Settings(models=(model,)), as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert (code, facts["passed"]) == (0, True), facts


IN_CHATS: dict[str, Made] = {
    "dense": with_chat(embeds(bert(of="qwen3"), _MEAN, prompts=SIDES)),
    "sparse": with_chat(sparse(SpladePooling("max"))),
    "late": with_chat(late()),
}


@pytest.mark.parametrize("name", full_but(("dense",), IN_CHATS))
def test_texts_in_a_chat_template(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that leaves them as they are is as good as none; others end the start."""
    folder = saved(IN_CHATS[name], tmp_path)
    settings = Settings(models=(ModelSettings(model_id=str(folder), devices="cpu", engine="transformers"),))
    assert "puts each text into the chat template" in refusal(verify, settings, as_json=True)
    around = "{{ cls_token }}" + _PLAIN + "{{ sep_token }}" if name != "dense" else _PLAIN
    (folder / "chat_template.jinja").write_text(around)
    model = model_folder.read(folder)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert model.chat_of_texts is not None
    check_texts(folder, model.chat_of_texts, backend)
    for more in (
        "{% if task == 'query' %}!{% endif %}",
        "{% if messages[-1].content[-1:] == '.' %}!{% endif %}",
        "{{ strftime_now('%d')[:0] }}",
        "{{ unk_token | replace('[UNK]', '') }}",
    ):
        (folder / "chat_template.jinja").write_text(around + more)
        is_served = "unk" in more and name != "dense"
        with nullcontext() if is_served else pytest.raises(TokenizerError, match="puts each text into the chat"):
            check_texts(folder, model.chat_of_texts, backend)
    quoted = _PLAIN.replace("m.content", "m.content | replace('\"', '')")
    (folder / "chat_template.jinja").write_text(around.replace(_PLAIN, quoted))
    with pytest.raises(TokenizerError, match="does not leave them as they are"):
        check_texts(folder, model.chat_of_texts, backend)


def test_texts_of_a_folder_without_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The library puts them into a chat template, which a note and `embedline verify` say."""
    first = Bare(tmp_path).transformer(of="qwen3")
    folder = Path(str(first.config.name_or_path))
    assert not any("chat template" in note for note in model_folder.read(folder).notes)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}")
    assert any("puts each text into the folder's chat template" in note for note in model_folder.read(folder).notes)
    settings = Settings(models=(ModelSettings(model_id=str(folder), devices="cpu", engine="transformers"),))
    code = verify(settings, as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert (code, facts["passed"]) == (0, True), facts
    assert "puts each text into the folder's chat template" in json.dumps(facts)


@pytest.mark.parametrize("name", full_but(("two models",), REFUSED))
def test_refused_by_its_name(name: str, tmp_path: Path) -> None:
    make, part = REFUSED[name]
    assert part in refusal(model_folder.read, saved(make, tmp_path))
