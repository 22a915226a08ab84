"""The folders of --lora, checked before a start against the model that computes them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peft import IA3Config, LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import BertConfig, BertModel

from engine import registry
from engine.model.tasks import Task
from engine.types import ModelError
from server.commands.inspect import inspect
from server.features.verify.comparison import verify
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
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
    change(elsewhere / "adapter_config.json", base_model_name_or_path="somewhere/else")
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


def test_rerankers_with_templates_keep_their_models_prompts(tmp_path: Path, made: Path, folder: Path) -> None:
    base = tmp_path / "reranker"
    shapes.qwen3_reranker(base)
    plan = planned(base, f"law={folder}", engine="fake", task=Task.RERANK)
    assert [lora.default_prompt for lora in plan.loras] == [plan.default_prompt]
    write(folder / "config_sentence_transformers.json", {"prompts": {"law": "L: "}})
    with pytest.raises(ModelError, match=r"prompts in .* are not the model's"):
        planned(base, f"law={folder}", engine="fake", task=Task.RERANK)


def test_inspect_names_them_and_verify_takes_none(made: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(
        models=(ModelSettings(model_id=str(made / "base"), lora=(f"law={folder}",), engine="transformers"),)
    )
    assert inspect(settings, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["loras"] == {"law": str(folder)}
    with pytest.raises(SettingsError, match="--lora can't be verified: name the adapter's folder as the model"):
        verify(settings, as_json=True)
