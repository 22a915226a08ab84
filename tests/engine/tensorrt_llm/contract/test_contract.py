"""The contract with the library, held against sources of both generations, and against ones with one thing changed."""

import importlib.util
import json
import os
from pathlib import Path

import pytest

from engine.tensorrt_llm.contract import contract
from engine.tensorrt_llm.contract.contract import Clause, Finding, Status, check
from engine.types import ModelError
from tests.engine.tensorrt_llm.library_source import NEW, OLD, write_library
from tests.structure.sources import ROOT

LLM = "llmapi/llm.py"
ARGS = "llmapi/llm_args.py"
BERT = "_torch/models/modeling_bert.py"
UTILS = "_torch/models/modeling_utils.py"
ATTENTION, INTERFACE = NEW


def changed(folder: Path, file: str, old: str, new: str) -> Path:
    path = write_library(folder) / "tensorrt_llm" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return folder


def wrong(folder: Path) -> list[Finding]:
    return [finding for finding in check(folder).findings if finding.status is not Status.KEPT]


@pytest.mark.parametrize("attention", [NEW, OLD], ids=["new", "old"])
def test_both_generations_keep_it(tmp_path: Path, attention: tuple[str, str]) -> None:
    report = check(write_library(tmp_path, attention=attention))

    assert wrong(tmp_path) == []
    assert (report.is_kept, report.version, report.folder) == (True, "1.4.0rc1", tmp_path)
    assert report.summary == f"{len(contract.clauses())} of {len(contract.clauses())} clauses kept"


@pytest.mark.parametrize("inside", ["", "tensorrt_llm"])
def test_the_packages_own_folder_will_do(tmp_path: Path, inside: str) -> None:
    assert check(write_library(tmp_path) / inside).is_kept


@pytest.mark.holds("TensorRT-LLM")
@pytest.mark.parametrize(
    ("file", "old", "new", "label", "what"),
    [
        (LLM, "def encode(", "def embed(", "LLM.encode", "has no method encode"),
        (LLM, "return_raw_logits=False, ", "", "LLM.encode", "no argument return_raw_logits"),
        (LLM, "def encode(self, inputs,", "def encode(self, prompts, inputs,", "LLM.encode", "begins with (prompts)"),
        (LLM, "copy_logits_to_host=True", "*, stream", "LLM.encode", "needs an argument stream"),
        (LLM, "**kwargs): ...", "more=None): ...", "LLM.__init__", "no further arguments"),
        (ARGS, "encode_only: bool", "encoder_only: bool", "TorchLlmArgs.encode_only", "no field encode_only"),
        (ARGS, "max_seq_len: Optional[int]", "max_len: Optional[int]", "TorchLlmArgs", "no field max_seq_len"),
        (UTILS, "register_auto_model(name", "register_auto_model(key", "register_auto_model", "begins with (key)"),
        (UTILS, "metaclass=PostInitCaller", "metaclass=Meta", "DecoderModelForCausalLM.config", "PostInitCaller"),
        (UTILS, "__post_init__", "finish", "DecoderModelForCausalLM.__post_init__", "no method"),
        (UTILS, "skip_modules=[], ", "", "DecoderModelForCausalLM.load_weights", "no argument skip_modules"),
        (UTILS, "layers: nn", "blocks: nn", "LlamaModel", "no attribute layers"),
        (ATTENTION, "attention_mask=", "mask=", "Attention.forward", "no argument attention_mask"),
        (BERT, "add_pooling_layer", "has_pooler", "BertModel.__init__", "no argument add_pooling_layer"),
        (BERT, "position_ids=None", "places=None", "BertModel.forward", "no argument position_ids"),
        (INTERFACE, 'FULL = "full"', 'FULL = "none"', "PredefinedAttentionMask", "FULL is 'none', not 'full'"),
        (INTERFACE, "seq_lens_cuda", "lengths", "AttentionMetadata.seq_lens_cuda", "no attribute seq_lens_cuda"),
        (
            "_torch/models/modeling_qwen3.py",
            "self.self_attn(position_ids=position_ids",
            "self.self_attn(position_ids",
            "Qwen3DecoderLayer.forward",
            "by place",
        ),
        (
            "_torch/models/checkpoints/base_weight_mapper.py",
            "prefix: str, weights",
            "weights",
            "HfWeightMapper.filter_weights",
            "begins with (weights), not with (prefix, weights)",
        ),
        (
            "_torch/model_config.py",
            "LlamaForTextEmbedding",
            "LlamaEmbedding",
            "ModelConfig.is_generation_model",
            "does not mention LlamaForTextEmbedding",
        ),
    ],
    ids=str,
)
def test_one_thing_is_another(tmp_path: Path, file: str, old: str, new: str, label: str, what: str) -> None:
    found = {finding.label: finding for finding in wrong(changed(tmp_path, file, old, new))}

    assert not check(tmp_path).is_kept
    assert found[label].status in (Status.BROKEN, Status.NOT_FOUND)
    assert what in found[label].what


def test_where_it_is_broken(tmp_path: Path) -> None:
    changed(tmp_path, ATTENTION, "attention_mask=", "mask=")

    (finding,) = wrong(tmp_path)
    text = check(tmp_path).text()

    assert (finding.status, finding.where) == (Status.BROKEN, f"tensorrt_llm/{ATTENTION}:3")
    assert f"broken     Attention.forward                    tensorrt_llm/{ATTENTION}:3: it has no argument" in text
    assert text.splitlines()[-1].startswith("40 of 41 clauses kept, 1 broken;")


def test_a_place_that_no_version_had_before(tmp_path: Path) -> None:
    write_library(tmp_path, attention=("_torch/layers/attention.py", INTERFACE))

    (finding,) = wrong(tmp_path)

    assert (finding.status, finding.where) == (Status.NOT_FOUND, "")
    assert "tensorrt_llm._torch.attention.attention" in finding.what
    assert not check(tmp_path).is_kept


def test_what_the_engine_does_without(tmp_path: Path) -> None:
    changed(tmp_path, ARGS, "skip_tokenizer_init", "no_tokenizer")

    (finding,) = wrong(tmp_path)

    assert (finding.label, finding.status) == ("TorchLlmArgs.skip_tokenizer_init", Status.SPARED)
    assert check(tmp_path).is_kept


def test_a_version_without_encode(tmp_path: Path) -> None:
    """As 1.2.1 is."""
    changed(tmp_path, LLM, "def encode(", "def generate(")
    (tmp_path / "tensorrt_llm" / "version.py").write_text('__version__ = "1.2.1"\n')

    report = check(tmp_path)

    assert (report.version, report.is_kept) == ("1.2.1", False)
    assert "1.2.1 has no such method" in report.text()


def test_a_file_that_can_not_be_read_is_as_good_as_none(tmp_path: Path) -> None:
    changed(tmp_path, UTILS, "def register_mapper(", "def (")

    assert {"register_mapper", "register_auto_model"} <= {finding.label for finding in wrong(tmp_path)}


@pytest.mark.parametrize("text", ["(" * 100_000, f"x = {'-' * 50_000}1"])
def test_a_file_that_is_nested_too_deeply_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    changed(tmp_path, UTILS, "def register_mapper(", f"{text}\ndef register_mapper(")

    assert "register_mapper" in {finding.label for finding in wrong(tmp_path)}


@pytest.mark.holds("TensorRT-LLM")
def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    file = write_library(tmp_path) / "tensorrt_llm" / UTILS
    file.unlink()
    os.mkfifo(file)

    assert "register_mapper" in {finding.label for finding in wrong(tmp_path)}


def test_imports_that_go_in_a_circle_end(tmp_path: Path) -> None:
    package = tmp_path / "tensorrt_llm"
    package.mkdir()
    (package / "one.py").write_text("from tensorrt_llm.two import *\n")
    (package / "two.py").write_text("from .one import *\nLLM = LLM\nclass Base(Base): ...\n")

    report = check(tmp_path, [Clause(modules=("tensorrt_llm.one",), name="LLM", why="it is asked for")])

    assert [finding.status for finding in report.findings] == [Status.NOT_FOUND]


def test_an_alias_and_a_fallback_are_followed(tmp_path: Path) -> None:
    package = tmp_path / "tensorrt_llm"
    package.mkdir()
    (package / "one.py").write_text(
        "try:\n    from tensorrt_llm.gone import Mask\n"
        "except ImportError:\n    from .two import Other as Mask\nAlias = Mask\n"
    )
    (package / "two.py").write_text("class Other:\n    FULL = 'full'\n")

    clause = Clause(modules=("tensorrt_llm.one",), name="Alias", why="it is asked for", values={"FULL": "full"})

    assert check(tmp_path, [clause]).is_kept


def test_names_that_stand_in_a_constant(tmp_path: Path) -> None:
    package = tmp_path / "tensorrt_llm"
    package.mkdir()
    (package / "one.py").write_text("NAMES = ('One',)\nOTHERS = ('Two',)\n\ndef known(name): return name in NAMES\n")
    clause = Clause(modules=("tensorrt_llm.one",), name="known", why="it is asked for", mentions=("One",))
    other = Clause(modules=("tensorrt_llm.one",), name="known", why="it is asked for", mentions=("Two",))

    assert [each.status for each in check(tmp_path, [clause, other]).findings] == [Status.KEPT, Status.BROKEN]


def test_no_package_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tensorrt_llm package: name the unpacked repository"):
        check(tmp_path)


def test_the_report_is_json(tmp_path: Path) -> None:
    value = json.loads(json.dumps(check(write_library(tmp_path)).to_json()))

    assert (value["version"], value["is_kept"]) == ("1.4.0rc1", True)
    assert value["findings"][0] == {
        "label": "LLM.__init__",
        "status": "kept",
        "where": "tensorrt_llm/llmapi/llm.py:21",
        "what": "",
        "why": "the model is loaded so; every other argument goes to TorchLlmArgs",
    }


@pytest.mark.holds("TensorRT-LLM")
def test_the_stand_in_keeps_it() -> None:
    """What the engine's other tests run on promises what is asked of the library."""
    report = check(ROOT / "tests" / "tensorrt_llm_fake")
    assert report.is_kept, report.text()


def test_the_installed_package_keeps_it() -> None:
    """Wherever there is one: it is found and read, and not imported."""
    spec = importlib.util.find_spec("tensorrt_llm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("tensorrt_llm is not installed")
    report = check(Path(spec.submodule_search_locations[0]))
    assert report.is_kept, report.text()
