"""The folders of --lora, checked before a start against the model that computes them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peft import IA3Config, LoraConfig, get_peft_model
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from engine import registry
from engine.model import model_folder
from engine.model.tasks import Task
from engine.types import ModelError
from server.commands.inspect import inspect
from server.features.verify.comparison import verify
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.adapter_bases import check_base
from server.supervisor.adapters import Lora
from server.supervisor.model_plan import ModelPlan, engine_options, plan_models
from tests.engine.folder_files import change, write
from tests.engine.model.detection import shapes
from tests.server_e2e.expected import minilm

# Of PEFT itself: it reads a deprecated attribute.
pytestmark = [pytest.mark.holds("Adapters"), pytest.mark.filterwarnings("ignore:`is_gradient:FutureWarning")]

TRANSFORMER = BertConfig(
    vocab_size=30522, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
)
PROMPTS = {"prompts": {"query": "Q: ", "document": ""}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with prompts, which means its rows, and an adapter of its layer as PEFT saves it."""
    root = tmp_path_factory.mktemp("made")
    base = root / "base"
    BertModel(TRANSFORMER).save_pretrained(base)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "modules.json"):
        shutil.copy(minilm() / name, base / name)
    shutil.copytree(minilm() / "1_Pooling", base / "1_Pooling")
    write(base / "config_sentence_transformers.json", PROMPTS)
    get_peft_model(
        BertModel(TRANSFORMER), LoraConfig(r=4, target_modules=["query"], init_lora_weights=False)
    ).save_pretrained(str(root / "law"))
    return root


def planned(base: Path, *loras: str, **others: Any) -> ModelPlan:
    flags = {"engine": "transformers", "devices": "cpu", **others}
    (plan,) = plan_models(Settings(models=(ModelSettings(model_id=str(base), lora=loras, **flags),)))
    return plan


def law(made: Path, tmp_path: Path, **others: Any) -> Lora:
    """A copy of the adapter, in which a test may change files."""
    (found,) = planned(made / "base", f"law={tmp_path / 'law'}", **others).loras
    return found


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "law", tmp_path / "law"))


def test_what_peft_saves_alone_has_all_else_of_the_model(made: Path, folder: Path, tmp_path: Path) -> None:
    plan = planned(made / "base", f"law={folder}", f"mail={folder}")
    assert [lora.name for lora in plan.loras] == ["law", "mail"]
    assert dict(plan.loras[0].prompts) == PROMPTS["prompts"]
    assert engine_options(plan, "cpu", cache_dir=None, num_threads=1).loras == (
        ("law", str(folder)),
        ("mail", str(folder)),
    )


def test_a_fingerprint_tells_adapters_apart_and_is_the_same_at_every_path(
    made: Path, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    get_peft_model(
        BertModel(TRANSFORMER), LoraConfig(r=4, target_modules=["query"], init_lora_weights=False)
    ).save_pretrained(str(other))
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")
    # PEFT keeps sets, of which the order is another each time
    file = elsewhere / "adapter_config.json"
    change(file, base_model_name_or_path="somewhere/base", target_modules=["x", "query"], layers_to_transform=[0])
    louder = shutil.copytree(folder, tmp_path / "louder")
    change(louder / "adapter_config.json", lora_alpha=32)
    plan = planned(made / "base", f"a={folder}", f"b={other}", f"c={elsewhere}", f"d={louder}")

    def identified(one: Lora) -> str:
        return one.identity.fingerprint(dtype="float32", engine="transformers")["id"]

    a, b, c, d = map(identified, plan.loras)
    assert a == c
    assert len({a, b, d, plan.identity.fingerprint(dtype="float32", engine="transformers")["id"]}) == 4
    assert planned(made / "base").identity == plan.identity  # that of the model does not depend on its adapters


def test_its_own_prompts_and_length_are_its_own(made: Path, folder: Path, tmp_path: Path) -> None:
    for name in ("modules.json", "1_Pooling"):
        source = made / "base" / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    before = law(made, tmp_path)
    write(folder / "config_sentence_transformers.json", {"prompts": {**PROMPTS["prompts"], "other": ""}})
    assert law(made, tmp_path).identity == before.identity  # an empty one is as good as none
    own = {"prompts": {"law": "Law: "}, "default_prompt_name": "law"}
    write(folder / "config_sentence_transformers.json", own)
    write(folder / "sentence_bert_config.json", {"max_seq_length": 64})
    found = law(made, tmp_path)
    assert (dict(found.prompts), found.default_prompt, found.max_seqlen) == (own["prompts"], "Law: ", 64)
    assert found.identity.settings != before.identity.settings
    assert law(made, tmp_path, default_prompt="D: ").default_prompt == "D: "
    with pytest.raises(ModelError, match=r"--lora law: --default-prompt-name is not one of its prompts \(law\)"):
        law(made, tmp_path, default_prompt_name="query")


def test_the_length_that_sentence_transformers_writes_for_the_tokenizer_alone(made: Path, tmp_path: Path) -> None:
    """Its Transformer's options have none, and the library cuts texts there."""
    library: Any = SentenceTransformer(str(made / "base"), device="cpu")
    library.add_adapter(LoraConfig(r=4, target_modules=["query"], init_lora_weights=False))
    for length in (64, 32):
        library.max_seq_length = length
        library.save(str(tmp_path / str(length)))
    assert "max_seq_length" not in (tmp_path / "64" / "sentence_bert_config.json").read_text()
    plan = planned(made / "base", f"a={tmp_path / '64'}", f"b={tmp_path / '32'}")
    assert [lora.max_seqlen for lora in plan.loras] == [64, 32]
    assert plan.folder.max_seqlen == 512
    assert len({lora.identity.settings for lora in plan.loras}) == 2


def test_a_length_beyond_the_models_is_refused(made: Path, folder: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(made / "base", tmp_path / "base"))
    write(base / "sentence_bert_config.json", {"max_seq_length": 64})
    write(folder / "tokenizer_config.json", {"model_max_length": 32})
    assert planned(base, f"law={folder}").loras[0].max_seqlen == 64  # it is of no tokenizer
    tokenizer = json.loads((base / "tokenizer_config.json").read_text())
    write(folder / "tokenizer_config.json", {**tokenizer, "model_max_length": 128})
    shutil.copy(base / "tokenizer.json", folder / "tokenizer.json")
    assert planned(base, f"law={folder}").loras[0].max_seqlen == 64  # without modules it is no whole model's
    _modules(folder, made)
    with pytest.raises(ModelError, match=r"^--lora law: tokenizer_config.json allows 128 tokens"):
        planned(base, f"law={folder}")


def _pooling(folder: Path, made: Path) -> None:
    shutil.copy(made / "base" / "modules.json", folder / "modules.json")
    write(folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True, "word_embedding_dimension": 16})


def _vocabulary(folder: Path, made: Path) -> None:
    content = json.loads((made / "base" / "tokenizer.json").read_text())
    content["model"]["vocab"]["[unused1]"] = 999_999
    write(folder / "tokenizer.json", content)


def _around(folder: Path, made: Path) -> None:
    content = json.loads((made / "base" / "tokenizer.json").read_text())
    write(folder / "tokenizer.json", {**content, "post_processor": None})


def _cut(folder: Path, made: Path) -> None:
    _modules(folder, made)
    write(folder / "config_sentence_transformers.json", {"truncate_dim": 8})


def _modules(folder: Path, made: Path) -> None:
    shutil.copy(made / "base" / "modules.json", folder / "modules.json")
    shutil.copytree(made / "base" / "1_Pooling", folder / "1_Pooling")


def _lower(folder: Path, made: Path) -> None:
    _modules(folder, made)
    write(folder / "sentence_bert_config.json", {"do_lower_case": True})


def _other_base(folder: Path, made: Path) -> None:
    wider = BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    get_peft_model(BertModel(wider), LoraConfig(r=4, target_modules=["query"])).save_pretrained(str(folder))


def _other_kind(folder: Path, made: Path) -> None:
    other = GPT2Model(GPT2Config(vocab_size=99, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1))
    get_peft_model(other, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)).save_pretrained(str(folder))


def _of_factors(folder: Path, made: Path) -> None:
    config = IA3Config(target_modules=["key"], feedforward_modules=[])
    get_peft_model(BertModel(TRANSFORMER), config).save_pretrained(str(folder))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder, made: (folder / "adapter_config.json").unlink(), "is not the folder of an adapter"),
        (lambda folder, made: change(folder / "adapter_config.json", new_key=1), "new_key"),
        (lambda folder, made: change(folder / "adapter_config.json", r=8), "'r' or 'rank_pattern'"),
        (lambda folder, made: save_file({}, folder / "adapter_model.safetensors"), "adapter_model.safetensors"),
        (_pooling, "1_Pooling/config.json asks for cls pooling"),
        (_vocabulary, "tokenizer.json is another tokenizer than the model's"),
        (_around, "tokenizer.json is another tokenizer than the model's"),
        (lambda folder, made: (folder / "tokenizer.json").write_text("{}"), "can't be read as a tokenizer"),
        (_cut, "truncate_dim in config_sentence_transformers.json is 8"),
        (_lower, "do_lower_case in sentence_bert_config.json is true"),
        (_other_base, r"the shape \[32, 32\], and the model's is \[16, 16\]: it is an adapter of another model"),
        (_other_kind, r"layer 'h.0.attn.c_attn', which the model lacks: .* another model, .*; serve .*law as a"),
        (_of_factors, "'peft_type' in .* serve .* as a model of its own"),
    ],
)
def test_what_would_give_other_rows_is_refused_by_its_file(
    spoil: Callable[[Path, Path], object], message: str, made: Path, folder: Path, tmp_path: Path
) -> None:
    spoil(folder, made)
    with pytest.raises(ModelError, match=rf"^--lora law: .*{message}"):
        law(made, tmp_path)


def test_the_same_tokenizer_written_by_another_version(made: Path, folder: Path, tmp_path: Path) -> None:
    content = json.loads((made / "base" / "tokenizer.json").read_text())
    write(folder / "tokenizer.json", {**content, "truncation": None, "padding": None})
    assert law(made, tmp_path).name == "law"


@pytest.mark.parametrize("name", ["query", "document", "latest", "clustering"])
def test_a_name_that_stands_for_something_behind_the_models(name: str, made: Path, folder: Path) -> None:
    with pytest.raises(SettingsError, match=f"^--lora {name} "):
        planned(made / "base", f"{name}={folder}")


def test_engines_that_can_not_keep_it_apart_refuse_it(made: Path, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"--lora is not for the fused engine.*serve the adapter's folder"):
        planned(made / "base", f"law={folder}", engine="fused")
    table = tmp_path / "table"
    shapes.static(table)
    with pytest.raises(ModelError, match="--lora is not for the static engine"):
        planned(table, f"law={folder}", engine="auto")
    takes = {name for name in registry.ENGINES if registry.why_no_loras(name) is None}
    assert takes == {registry.FAKE, registry.OPENVINO, registry.TRANSFORMERS}
    assert planned(made / "base", f"law={folder}", engine="auto").engine == registry.AUTO


def test_a_key_that_one_engine_lacks_is_refused_where_that_one_is_asked_for(made: Path, tmp_path: Path) -> None:
    config = LoraConfig(r=4, target_modules=["query"], bias="all")
    get_peft_model(BertModel(TRANSFORMER), config).save_pretrained(str(tmp_path / "law"))
    with pytest.raises(ModelError, match=r"--lora law: 'bias' in .* serve .* as a model of its own"):
        law(made, tmp_path, engine="openvino")
    for engine in (registry.AUTO, "transformers"):
        assert law(made, tmp_path, engine=engine).name == "law"


def _with_modules_of(shape: Callable[[Path], None], folder: Path) -> None:
    """The modules that sentence-transformers saves beside an adapter of such a model."""
    whole = folder.parent / "whole"
    shape(whole)
    for file in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        if (whole / file).is_file():
            shutil.copy(whole / file, folder / file)
    for place in filter(Path.is_dir, whole.iterdir()):
        shutil.copytree(place, folder / place.name)
    shutil.rmtree(whole)


@pytest.mark.parametrize(
    ("base", "own", "listed"),
    [
        (shapes.embedding, shapes.splade, "MLMTransformer, SpladePooling"),
        (shapes.embedding, shapes.pylate, "Transformer, Dense"),
        (shapes.cross_encoder, shapes.embedding, "Transformer, Pooling, Dense, Normalize"),
        (shapes.token_classifier, shapes.embedding, "Transformer, Pooling, Dense, Normalize"),
        (shapes.splade, shapes.embedding, "Transformer, Pooling, Dense, Normalize"),
        (shapes.masked_lm, shapes.logit_score, "Transformer, LogitScore"),
        (shapes.pylate, shapes.splade, "MLMTransformer, SpladePooling"),
        (shapes.pylate, shapes.multi_vector, "Dense, MultiVectorMask, Normalize behind the Transformer"),
    ],
)
def test_modules_of_another_kind_of_model_are_refused(
    base: Callable[[Path], None], own: Callable[[Path], None], listed: str, folder: Path, tmp_path: Path
) -> None:
    base(tmp_path / "base")
    _with_modules_of(own, folder)
    with pytest.raises(ModelError, match=rf"^--lora law: modules.json lists {listed} in .*/law, and the model's is an"):
        planned(tmp_path / "base", f"law={folder}", engine="fake")


@pytest.mark.parametrize(
    ("shape", "file", "changed", "said"),
    [
        (shapes.splade, "p1/config.json", {"pooling_strategy": "max"}, "pooling_strategy in p1/config.json"),
        (shapes.splade, "config_sentence_transformers.json", {"max_active_dims": 9}, "max_active_dims in config_sent"),
        (shapes.logit_score, "s1/config.json", {"true_token_id": 6}, "true_token_id in s1/config.json"),
        (shapes.pylate, "d1/config.json", {"activation_function": "torch.nn.Tanh"}, "activation_function in d1/config"),
        (shapes.pylate, "d1/model.safetensors", None, "/d1/model.safetensors"),
    ],
)
def test_modules_of_every_kind_must_be_the_models(
    shape: Callable[[Path], None], file: str, changed: dict[str, Any] | None, said: str, folder: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shape(base)
    _with_modules_of(shape, folder)
    assert planned(base, f"law={folder}", engine="fake").loras[0].name == "law"
    if changed is None:
        shapes.weights(folder / file, linear__weight=(3, 2))
    else:
        change(folder / file, **changed)
    with pytest.raises(ModelError, match=rf"^--lora law: .*{said}.* in .*/law, and the model's is another"):
        planned(base, f"law={folder}", engine="fake")


def test_rerankers_with_templates_keep_their_models_prompts(tmp_path: Path, made: Path, folder: Path) -> None:
    base = tmp_path / "reranker"
    shapes.qwen3_reranker(base)
    plan = planned(base, f"law={folder}", engine="fake", task=Task.RERANK)
    assert [lora.default_prompt for lora in plan.loras] == [plan.default_prompt]
    write(folder / "config_sentence_transformers.json", {"prompts": {"law": "L: "}})
    with pytest.raises(ModelError, match=r"prompts in .* are not the model's"):
        planned(base, f"law={folder}", engine="fake", task=Task.RERANK)


COMMIT = "0" * 40


@pytest.mark.parametrize(
    "named",
    [
        None,
        "",
        "{base}",
        "../base",  # beside the adapter
        "{copy}",  # by its weights
        "us/base",
        "/of/training/base/",
        f"/of/training/models--us--base/snapshots/{COMMIT}",
        "them/my-model",
        "us/older",
    ],
)
def test_names_that_mean_the_model(named: str | None, made: Path, folder: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(made / "base", tmp_path / "base"))
    change(base / "config.json", _name_or_path="them/older")
    copy = shutil.copytree(base, tmp_path / "copy")
    write(copy / "config_sentence_transformers.json", {})
    change(folder / "adapter_config.json", base_model_name_or_path=named and named.format(base=base, copy=copy))
    plan = planned(base, f"law={folder}", served_model_name="my-model")
    assert [lora.note for lora in plan.loras] == [""]


def test_an_adapter_of_another_base_with_the_same_layers_is_refused(made: Path, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(made / "base", other)
    BertModel(TRANSFORMER).save_pretrained(other)  # other numbers
    change(folder / "adapter_config.json", base_model_name_or_path=str(other))
    words = rf"'base_model_name_or_path' in .*adapter_config.json is '{other}', .* of another model. .*-name other$"
    with pytest.raises(ModelError, match=f"^--lora law: {words}"):
        law(made, tmp_path)


@pytest.mark.parametrize("named", ["us/another", f"/of/training/models--us--another/snapshots/{COMMIT}"])
def test_another_repositorys_adapter_is_refused(named: str, made: Path, folder: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--us--base" / "snapshots" / COMMIT
    shutil.copytree(made / "base", snapshot)
    for model in (ModelSettings(model_id="us/base", revision=COMMIT), ModelSettings(model_id=str(snapshot))):
        change(folder / "adapter_config.json", base_model_name_or_path="us/base")
        assert check_base(folder, model, model_folder.read(snapshot), None) == ""
        change(folder / "adapter_config.json", base_model_name_or_path=named)
        with pytest.raises(ModelError, match=r"'base_model_name_or_path' .* of another model.*-name another$"):
            check_base(folder, model, model_folder.read(snapshot), None)


@pytest.mark.parametrize("named", ["/of/training/run-7", "C:\\training\\run-7", "us/another", "x" * 5000])
def test_a_base_that_is_not_here_leaves_a_note(
    named: str, made: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is a folder, so a repository's name tells nothing either."""
    change(folder / "adapter_config.json", base_model_name_or_path=named)
    model = ModelSettings(model_id=str(made / "base"), lora=(f"law={folder}",), engine="transformers")
    assert inspect(Settings(models=(model,)), as_json=True) == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note.startswith(f"--lora law: 'base_model_name_or_path' in {folder / 'adapter_config.json'} is {named!r}")
    assert note.endswith("make sure that it is the same model")


def test_inspect_names_them_and_verify_takes_none(made: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(
        models=(ModelSettings(model_id=str(made / "base"), lora=(f"law={folder}",), engine="transformers"),)
    )
    assert inspect(settings, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["loras"] == {"law": str(folder)}
    with pytest.raises(SettingsError, match="--lora can't be verified: name the adapter's folder as the model"):
        verify(settings, as_json=True)
