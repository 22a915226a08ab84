"""jina-embeddings-v5-text: EuroBERT (nano) and Qwen3 (small) with PEFT's adapters.

Read: jinaai/jina-embeddings-v5-text-nano, modeling_jina_embeddings_v5.py, custom_st.py, modeling_eurobert.py and
adapters/retrieval/adapter_config.json, as copied in public (oaustegard/jina-v5-nano-mirror); of -small the same files
as public reviews describe them, and vllm-project/vllm, model_executor/models/jina.py. PEFT's adapters: Hu et al.,
LoRA (arXiv 2106.09685), section 4.1.
"""

from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tests.engine.folder_files import write
from tests.parity.repositories.models.families import published
from tests.parity.repositories.own_code import qwen3
from tests.parity.repositories.own_code.forms import OPENVINO, TRANSFORMERS, Config, Form, Shapes, Weights, arbitrary

NANO: dict[str, Any] = published("jina-embeddings-v5-text-nano, small")
SMALL: dict[str, Any] = published("jina-embeddings-v5-text-small, small")
TASKS: tuple[str, ...] = tuple(NANO["task_names"])
RANK, ALPHA = 3, 6
CODE = {"modules.json": [{"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer"}]}
PROMPTS = {"prompts": {"query": "Query: ", "document": "Document: "}, "default_prompt_name": "document"}
FILES = {**CODE, "config_sentence_transformers.json": PROMPTS}
# adapter_config.json of -nano, as published but for rank and scale
ADAPTER: dict[str, Any] = {
    "alpha_pattern": {},
    "auto_mapping": None,
    "base_model_name_or_path": "jinaai/jina-embeddings-v5-text-nano",
    "bias": "none",
    "corda_config": None,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": "gaussian",
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": ALPHA,
    "lora_bias": False,
    "lora_dropout": 0.1,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "r": RANK,
    "rank_pattern": {},
    "revision": None,
    "target_modules": ["gate_proj", "v_proj", "q_proj", "down_proj", "o_proj", "k_proj", "up_proj"],
    "task_type": "FEATURE_EXTRACTION",
    "trainable_token_indices": None,
    "use_dora": False,
    "use_rslora": False,
}


def shapes(config: Config) -> Shapes:
    return qwen3.shapes(config, has_head_norms=config is not NANO)


def adapter_shapes(config: Config) -> Shapes:
    """Of one adapter, by PEFT's names."""
    found: Shapes = {}
    for name, shape in shapes(config).items():
        if name.endswith("_proj.weight"):
            layer = f"base_model.model.{name.removesuffix('.weight')}"
            found[f"{layer}.lora_A.weight"] = (RANK, shape[1])
            found[f"{layer}.lora_B.weight"] = (shape[0], RANK)
    return found


def adapters(config: Config) -> list[Weights]:
    """Of each task: arbitrary, and all different."""
    names = [f"{number} {name}" for number in range(len(TASKS)) for name in adapter_shapes(config)]
    found = arbitrary({name: adapter_shapes(config)[name.partition(" ")[2]] for name in names})
    parts: list[Weights] = [{} for _ in TASKS]
    for name, tensor in found.items():
        number, _, own = name.partition(" ")
        parts[int(number)][own] = tensor * 0.5
    return parts


def save_adapters(config: Config, folder: Path, **changes: Any) -> Path:
    """The folders of all tasks. changes: of each adapter_config.json."""
    for task, weights in zip(TASKS, adapters(config), strict=True):
        own = folder / "adapters" / task
        write(own / "adapter_config.json", ADAPTER | changes)
        tensors = {name: tensor.float().contiguous() for name, tensor in weights.items()}
        save_file(tensors, own / "adapter_model.safetensors")
    return folder


def of_task(config: Config, weights: Weights, task: int | None) -> Weights:
    """The weights with B A alpha / rank of the task's adapter added."""
    if task is None:
        return weights
    own, changed = adapters(config)[task], dict(weights)
    for name in weights:
        a = own.get(f"base_model.model.{name.removesuffix('.weight')}.lora_A.weight")
        if a is not None:
            b = own[f"base_model.model.{name.removesuffix('.weight')}.lora_B.weight"]
            changed[name] = weights[name] + b @ a * (ALPHA / RANK)
    return changed


def last(config: Config, weights: Weights, ids: list[int], *, task: int | None = None) -> Tensor:
    """Before it is scaled to length 1."""
    is_causal = config.get("is_decoder", True)
    return qwen3.token_rows(config, of_task(config, weights, task), ids, is_causal=is_causal)[-1]


_REFUSED: tuple[tuple[str, Any], ...] = (
    ("hidden_act", "gelu"),
    ("attention_bias", True),
    ("rope_scaling", {"rope_type": "linear", "factor": 2.0}),
    ("task_names", ["clustering"]),
    ("task_names", "retrieval"),
    ("head_bias", True),
)
_ENGINES = (TRANSFORMERS, OPENVINO)


class WithAdapters(Form):
    """Saved with the files of its adapters."""

    def save(self, folder: Path, **changes: Any) -> Path:
        return save_adapters(self.config, super().save(folder, **changes))


FORMS: dict[str, Form] = {
    f"jina-embeddings-v5-text-{size}": WithAdapters(
        config=config,
        shapes=shapes(config),
        row=last,
        files=FILES,
        engines=_ENGINES,
        is_fuzzed=True,
        refused=refused,
    )
    for size, config, refused in (
        ("nano", NANO, (*_REFUSED, ("mlp_bias", True))),
        ("small", SMALL, (*_REFUSED, ("use_sliding_window", True))),
    )
}
