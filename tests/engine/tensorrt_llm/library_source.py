"""Writes what a tensorrt_llm looks like from outside: the signatures of both generations of its paths, with no code.

Read off the library's source in 2026, from its last 1.3 candidates to 1.4.0rc1. Not to be imported.
"""

import textwrap
from pathlib import Path

NEW = ("_torch/attention/attention.py", "_torch/attention/backends/interface.py")
OLD = ("_torch/modules/attention.py", "_torch/attention_backend/interface.py")

_LLM = """
    class EncoderOutput:
        logits: torch.Tensor
        prompt_token_ids: List[int]
        prompt: Optional[str] = None

    class BaseLLM:
        def __init__(self, model, tokenizer=None, skip_tokenizer_init=False, trust_remote_code=False, dtype="auto",
                     **kwargs):
            self._encoder_executor = None

        @set_api_status("prototype")
        def encode(self, inputs, add_special_tokens=True, batch_indexed_model_output=True, copy_logits_to_host=True,
                   return_raw_logits=False, **model_kwargs): ...

        def shutdown(self) -> None: ...

    class _TorchLLM(BaseLLM): ...

    class LLM(_TorchLLM):
        def __init__(self, model, tokenizer=None, skip_tokenizer_init=False, trust_remote_code=False, dtype="auto",
                     **kwargs): ...
"""
_ARGS = """
    class BaseCudaGraphConfig(StrictBaseModel):
        batch_sizes: Optional[List[int]] = Field(default=None)
        max_batch_size: int = 0
        enable_padding: bool = False

    class EncodeCudaGraphConfig(BaseCudaGraphConfig):
        mode: Literal["encode"] = "encode"
        num_tokens: Optional[List[int]] = None
        max_num_token: int = 0
        seq_lens: Optional[List[int]] = None
        max_seq_len: int = 0

    class BaseLlmArgs(StrictBaseModel):
        model: str
        dtype: str = "auto"
        skip_tokenizer_init: bool = False
        trust_remote_code: bool = False
        model_kwargs: Optional[dict] = None
        max_batch_size: Optional[int] = 2048
        max_num_tokens: Optional[int] = 8192
        max_seq_len: Optional[int] = None
        telemetry_config: TelemetryConfig = Field(default_factory=TelemetryConfig)

    class TorchLlmArgs(BaseLlmArgs):
        attn_backend: str = "TRTLLM"
        cuda_graph_config: Optional[CudaGraphConfigType] = None
        encode_only: bool = False
"""
_UTILS = """
    class DecoderModel(nn.Module, metaclass=PPInitCaller):
        embed_tokens: Embedding
        layers: nn.ModuleList
        norm: RMSNorm

        def forward(self, attn_metadata, input_ids=None, position_ids=None, inputs_embeds=None, **kwargs): ...

    class DecoderModelForCausalLM(nn.Module, Generic[TModel, TConfig], metaclass=PostInitCaller):
        def __post_init__(self): ...

        @property
        def config(self): ...

        def load_weights(self, weights, weight_mapper=None, skip_modules=[], params_map=None): ...

    def register_auto_model(name: str): ...

    def register_mapper(format: str, name: Optional[str] = None): ...
"""
_BACKBONE = """
    from .modeling_utils import DecoderModel

    class {layer}DecoderLayer(DecoderLayer):
        def __init__(self, model_config, layer_idx):
            self.self_attn = Attention()
            self.next_layer_layernorm: RMSNorm = None

        def forward(self, position_ids, hidden_states, attn_metadata, residual=None, **kwargs):
            return self.self_attn(position_ids=position_ids, hidden_states=hidden_states, **kwargs)

    class {name}Model(DecoderModel):
        def __init__(self, model_config: ModelConfig): ...

        def forward(self, attn_metadata, input_ids=None, position_ids=None, inputs_embeds=None): ...
"""
_BERT = """
    class BertModel(nn.Module):
        def __init__(self, model_config: ModelConfig[BertConfig], add_pooling_layer=True): ...

        def forward(self, attn_metadata, input_ids=None, token_type_ids=None, position_ids=None): ...

    class BertForSequenceClassification(nn.Module):
        @property
        def config(self): ...

        def infer_max_seq_len(self) -> int: ...
"""
_ATTENTION = """
    class Attention(nn.Module):
        def forward(self, position_ids, hidden_states, attn_metadata,
                    attention_mask=PredefinedAttentionMask.CAUSAL, mrope_config=None, **kwargs): ...
"""
_INTERFACE = """
    class AttentionMetadata:
        max_num_requests: int

        @property
        def seq_lens_cuda(self): ...

    class PredefinedAttentionMask(str, Enum):
        CAUSAL = "causal"
        FULL = "full"
"""
_CONFIG = """
    class ModelConfig(Generic[TConfig]):
        @staticmethod
        def is_generation_model(model_architectures, mm_encoder_only=False):
            return model_architectures[0] not in [
                "BertForSequenceClassification", "Qwen2ForProcessRewardModel", "Qwen2ForRewardModel",
                "LlamaForTextEmbedding", "Qwen3ForTextEmbedding",
            ]
"""
_MAPPER = """
    class BaseWeightMapper(ABC):
        def filter_weights(self, prefix: str, weights: dict) -> dict: ...
"""
_HF_MAPPER = """
    from ..base_weight_mapper import BaseWeightMapper

    @register_mapper("HF")
    class HfWeightMapper(BaseWeightMapper):
        def map_weights(self) -> None: ...
"""
_EXECUTOR = """
    class EncoderExecutor:
        def __init__(self, model_engine, dist):
            self.model_engine = model_engine
"""
_ENGINE = """
    class PyTorchModelEngine(ModelEngine):
        def __init__(self, *, model_path, llm_args):
            self.batch_size, self.max_num_tokens = 1, 2
            self.max_seq_len: int = 3
"""
_PACKAGE = """
    from typing import TYPE_CHECKING

    if TYPE_CHECKING:
        from .llmapi import LLM

    def __getattr__(name): ...
"""
_PUBLIC = """
    from .llm import LLM
    from .llm_args import *
"""


def write_library(folder: Path, *, attention: tuple[str, str] = NEW) -> Path:
    """A package `tensorrt_llm` in the folder, which is returned; `attention`: where its two files are."""
    models = {
        f"_torch/models/modeling_{module}.py": _BACKBONE.format(layer=name, name=name)
        for module, name in (("llama", "Llama"), ("mistral", "Mistral"), ("qwen", "Qwen"), ("qwen3", "Qwen3"))
    }
    files = {
        "__init__.py": _PACKAGE,
        "version.py": '    __version__ = "1.4.0rc1"\n',
        "llmapi/__init__.py": _PUBLIC,
        "llmapi/llm.py": _LLM,
        "llmapi/llm_args.py": _ARGS,
        "_torch/model_config.py": _CONFIG,
        "_torch/models/modeling_utils.py": _UTILS,
        "_torch/models/checkpoints/base_weight_mapper.py": _MAPPER,
        "_torch/models/checkpoints/hf/weight_mapper.py": _HF_MAPPER,
        "_torch/pyexecutor/encoder_executor.py": _EXECUTOR,
        "_torch/pyexecutor/model_engine.py": _ENGINE,
        "_torch/models/modeling_bert.py": _BERT,
        **models,
        **dict(zip(attention, (_ATTENTION, _INTERFACE), strict=True)),
    }
    for name, text in files.items():
        file = folder / "tensorrt_llm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return folder
