"""The contract with the library, held against the stand-in, and against copies of it with one thing changed."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from tests.engine.tensorrt_llm.contract.contract import PACKAGE, Clause, Finding, Status, check
from tests.engine.tensorrt_llm.stand_in import FOLDER

LLM = "llmapi/llm.py"
ARGS = "llmapi/llm_args.py"
BERT = "_torch/models/modeling_bert.py"
DECODER = "stand_in/decoder.py"
UTILS = "_torch/models/modeling_utils.py"
ATTENTION, INTERFACE = "stand_in/attention.py", "stand_in/interface.py"
PATHS = {"new": "_torch/attention", "old": "_torch/attention_backend"}

pytestmark = pytest.mark.holds("TensorRT-LLM")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return shutil.copytree(FOLDER / PACKAGE, tmp_path / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))


def change(library: Path, file: str, old: str, new: str) -> None:
    text = (library / file).read_text()
    assert old in text
    (library / file).write_text(text.replace(old, new))


def wrong(library: Path) -> dict[str, Finding]:
    return {finding.label: finding for finding in check(library) if finding.status is not Status.KEPT}


def test_the_stand_in_keeps_it() -> None:
    """What the engine's other tests run on promises what is asked of the library."""
    assert wrong(FOLDER) == {}


def test_the_installed_package_keeps_it() -> None:
    """Wherever there is one: it is found and read, and not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{PACKAGE} is not installed")
    findings = check(Path(spec.submodule_search_locations[0]))
    assert all(finding.is_kept for finding in findings), "\n".join(map(str, findings))


@pytest.mark.parametrize("generation", ["new", "old"])
def test_both_generations_of_paths_keep_it(library: Path, generation: str) -> None:
    shutil.rmtree(library / PATHS["old" if generation == "new" else "new"])
    if generation == "new":
        (library / "_torch/modules/attention.py").unlink()
    assert wrong(library) == {}


def test_a_place_that_no_version_had_before(library: Path) -> None:
    for folder in PATHS.values():
        shutil.rmtree(library / folder)
    found = wrong(library)["PredefinedAttentionMask"]
    assert (found.status, found.where, found.is_kept) == (Status.NOT_FOUND, "", False)
    assert "tensorrt_llm._torch.attention.backends.interface" in found.what


@pytest.mark.parametrize(
    ("file", "old", "new", "label", "what"),
    [
        (LLM, "def encode(", "def embed(", "LLM.encode", "has no method encode"),
        (LLM, "return_raw_logits: bool = False,", "", "LLM.encode", "no argument return_raw_logits"),
        (LLM, "        inputs: Any,", "        prompts: Any, inputs: Any,", "LLM.encode", "begins with (prompts)"),
        (LLM, "copy_logits_to_host: bool = True", "*, stream: bool", "LLM.encode", "needs an argument stream"),
        (
            LLM,
            "**kwargs: Any,\n    ) -> None",
            "more: Any = None,\n    ) -> None",
            "LLM.__init__",
            "no further arguments",
        ),
        (ARGS, "encode_only: bool", "encoder_only: bool", "TorchLlmArgs.encode_only", "no field encode_only"),
        (ARGS, "max_seq_len: int | None", "max_len: int | None", "TorchLlmArgs", "no field max_seq_len"),
        (UTILS, "register_auto_model(name", "register_auto_model(key", "register_auto_model", "begins with (key)"),
        (UTILS, "metaclass=PostInitCaller", "metaclass=Meta", "DecoderModelForCausalLM.config", "PostInitCaller"),
        (UTILS, "__post_init__", "finish", "DecoderModelForCausalLM.__post_init__", "no method"),
        (UTILS, "skip_modules: list", "skips: list", "DecoderModelForCausalLM.load_weights", "argument skip_modules"),
        (UTILS, "def register_mapper(", "def (", "register_mapper", "there is no module"),
        (DECODER, "self.embed_tokens", "self.table", "LlamaModel", "no attribute embed_tokens"),
        (ATTENTION, "attention_mask: ", "mask: ", "Attention.forward", "no argument attention_mask"),
        (BERT, "add_pooling_layer", "has_pooler", "BertModel.__init__", "no argument add_pooling_layer"),
        (BERT, "position_ids: torch.Tensor,", "places: torch.Tensor,", "BertModel.forward", "no argument position_ids"),
        (INTERFACE, 'FULL = "full"', 'FULL = "none"', "PredefinedAttentionMask", "FULL is 'none', not 'full'"),
        (INTERFACE, "seq_lens_cuda", "lengths", "AttentionMetadata.seq_lens_cuda", "no attribute seq_lens_cuda"),
        (DECODER, "position_ids=position_ids,", "position_ids,", "Qwen3DecoderLayer.forward", "by place"),
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
def test_one_thing_is_another(library: Path, file: str, old: str, new: str, label: str, what: str) -> None:
    change(library, file, old, new)

    found = wrong(library)[label]

    assert not found.is_kept
    assert what in found.what
    assert found.why in str(found)


def test_what_the_engine_does_without(library: Path) -> None:
    change(library, ARGS, "skip_tokenizer_init", "no_tokenizer")
    assert {label: found.is_kept for label, found in wrong(library).items()} == {
        "TorchLlmArgs.skip_tokenizer_init": True
    }


def test_aliases_fallbacks_and_circles_are_followed(tmp_path: Path) -> None:
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "one.py").write_text(
        "try:\n    from tensorrt_llm.gone import Mask\n"
        "except ImportError:\n    from .two import Other as Mask\nAlias = Mask\n"
    )
    (tmp_path / PACKAGE / "two.py").write_text(
        "from .one import *\nGone = Gone\nclass Base(Base): ...\nclass Other:\n    FULL = 'full'\n"
    )
    names = {"Alias": Status.KEPT, "Gone": Status.NOT_FOUND}
    asked = [
        Clause(modules=("tensorrt_llm.one", "tensorrt_llm.two"), name=name, why="it is asked for") for name in names
    ]
    assert [finding.status for finding in check(tmp_path, asked)] == [*names.values()]
