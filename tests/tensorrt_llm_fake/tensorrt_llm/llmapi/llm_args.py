"""What an LLM is told. An argument that is not here is an error."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class StrictBaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())


class BaseCudaGraphConfig(StrictBaseModel):
    batch_sizes: list[int] | None = None
    max_batch_size: int = 0
    enable_padding: bool = False


class CudaGraphConfig(BaseCudaGraphConfig):
    mode: Literal["decode"] = "decode"


class EncodeCudaGraphConfig(BaseCudaGraphConfig):
    mode: Literal["encode"] = "encode"
    num_tokens: list[int] | None = None
    max_num_token: int = 0
    seq_lens: list[int] | None = None
    max_seq_len: int = 0
    extra_model_inputs: list[Any] = Field(default_factory=list)


class TelemetryConfig(StrictBaseModel):
    disabled: bool = False


class BaseLlmArgs(StrictBaseModel):
    model: str
    tokenizer: Any = None
    tokenizer_mode: Literal["auto", "slow"] = "auto"
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    tensor_parallel_size: int = 1
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    revision: str | None = None
    tokenizer_revision: str | None = None
    model_kwargs: dict[str, Any] | None = None
    max_batch_size: int | None = 2048
    max_input_len: int | None = 1024
    max_seq_len: int | None = None
    max_num_tokens: int | None = 8192
    load_format: Literal["auto", "dummy"] = "auto"
    checkpoint_format: str | None = None
    telemetry_config: TelemetryConfig = Field(default_factory=TelemetryConfig)


class TorchLlmArgs(BaseLlmArgs):
    attn_backend: str = "TRTLLM"
    cuda_graph_config: CudaGraphConfig | EncodeCudaGraphConfig | None = Field(default_factory=CudaGraphConfig)
    torch_compile_config: Any = None
    enable_autotuner: bool = True
    force_dynamic_quantization: bool = False
    disable_overlap_scheduler: bool = False
    encode_only: bool = False
    mm_encoder_only: bool = False
