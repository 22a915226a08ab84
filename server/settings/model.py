"""The flags of one model, which `--config` can give for several. Built and checked once, then frozen."""

from dataclasses import dataclass

from engine.model.tasks import Task
from server.settings.flag import SettingsError, check_flags, flag

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Names and environment variables are TEI's where TEI has the flag."""

    model_id: str = flag(
        DEFAULT_MODEL,
        "Model",
        "The model: a local folder, or a name on the Hugging Face hub, which is looked for in the hub's cache first. "
        "The default is small and quick on a laptop. Repeat it to serve several: clients choose by the served name, "
        "--revision and --served-model-name are then repeated as often and in the same order, or left out, and every "
        "other flag holds for all of them. In the environment it is one model.",
        is_own=True,
    )
    revision: str | None = flag(
        None,
        "Model",
        "Commit, tag or branch on the hub. Give a commit to serve the same weights for ever.",
        is_own=True,
    )
    served_model_name: str | None = flag(
        None,
        "Model",
        "The name that answers carry and /v1/models lists; --model-id unless given. Several models need different "
        "ones.",
        is_own=True,
    )
    task: str = flag(
        "auto",
        "Model",
        "What the model is for. auto reads it from the model's files, and `embedline inspect` says what was found and "
        "which file says so. Name one where they say too little, as rerank for a generative reranker under another "
        "name, or where you want another use than the likeliest: embed for the rows of a classifier's encoder, sparse "
        "for those of a masked language model. What the model has no head for is refused at the start.",
        one_of=("auto", *Task),
    )
    pooling: str | None = flag(
        None,
        "Model",
        "How token vectors become one, where the model's own files do not say, or say wrong. splade makes a masked "
        "language model give weights of words instead.",
        aliases=("--pooling-method",),
        one_of=("cls", "mean", "last-token", "splade"),
    )
    dense_path: str | None = flag(
        None,
        "Model",
        "The folder of the model's Dense module, as text-embeddings-inference has it. Only the one that modules.json "
        "names is taken: another is refused, as its rows would be others.",
    )
    max_input_length: int | None = flag(
        None,
        "Model",
        "Tokens of a text at most, special tokens included, where that is to be fewer than the model takes: long "
        "texts then cost less, and say less. Longer ones are cut or refused, as --auto-truncate says.",
        aliases=("--max-model-len",),
        least=8,
    )
    auto_truncate: bool = flag(
        True, "Model", "Cut texts that are longer than the model takes; without it they are refused with 400."
    )
    default_prompt_name: str | None = flag(
        None,
        "Model",
        "Which of the model's own prompts is put before each text; `embedline inspect` lists them. Choose the one for "
        "what is sent most, such as the query's where documents are embedded elsewhere.",
    )
    default_prompt: str | None = flag(
        None, "Model", "Words that are put before each text, where the model was trained with words that it lacks."
    )
    engine: str = flag(
        "auto",
        "Engine",
        "What computes. auto takes the first engine that is installed and serves the model; /info says which and why. "
        "fused is made for GPUs and knows some architectures; transformers serves most, anywhere; fake needs no "
        "weights and is for tests and for measuring everything but the model.",
    )
    devices: str = flag(
        "auto",
        "Engine",
        "Where engines run: one engine process for each. auto takes the first GPU of compute capability 8.0 or more, "
        "else the CPU; `embedline inspect` says which and why. cpu, cuda for all GPUs that CUDA_VISIBLE_DEVICES "
        "leaves, or some of them by number, such as cuda:0,cuda:2. The whole model lies on each.",
    )
    dtype: str = flag(
        "auto",
        "Engine",
        "Compute type. On a CPU auto is float32, and the others pay only where the CPU has arithmetic for them; on a "
        "GPU it is bfloat16.",
        one_of=("auto", "float32", "bfloat16", "float16"),
    )
    quantization: str = flag(
        "auto",
        "Engine",
        "Fewer bits for the weights: faster, with rows that differ a little; how much is measured and logged at load. "
        "int8 is for CPUs, fp8 for GPUs of compute capability 8.9 or more. auto leaves the model as it is on a CPU; on "
        "a GPU the engine takes fp8 where it pays. none keeps rows as they are everywhere.",
        one_of=("none", "auto", "fp8", "int8"),
    )
    attention: str = flag(
        "auto",
        "Engine",
        "Of the fused engine on a GPU: auto measures at load which of our kernel, FlashAttention-2 and cuDNN is "
        "fastest for the model at each length; tiles takes ours without measuring, should one of the others do harm.",
        one_of=("auto", "tiles"),
    )
    tensorrt_llm_model_class: str = flag(
        "embedline",
        "Engine",
        "Of the tensorrt-llm engine: embedline computes the model by Embedline's own class, which pools and scores as "
        "the model's files ask; stock by TensorRT-LLM's, of which few fit. Choose stock to hold one against the "
        "other, or for what has no class of ours.",
        one_of=("embedline", "stock"),
    )
    tensorrt_llm_cuda_graphs: bool = flag(
        False,
        "Engine",
        "Of the tensorrt-llm engine: record CUDA graphs of small batches at load, so that a lone query costs the host "
        "less. It takes GPU memory and a longer start; larger batches run without.",
    )
    gpu_memory_share: float | None = flag(
        None,
        "Engine",
        "How much of a GPU's memory each of the model's engines may take, where several engines of this server run on "
        "it: 0.5 is half. auto shares what the others leave equally. Give a large model more than a small one beside "
        "it; a driver's context of about half a GB for each engine comes on top.",
        least=0.01,
        most=1,
        none_word="auto",
    )
    max_batch_tokens: int | None = flag(
        None,
        "Engine",
        "Tokens of one batch at most. auto lets the engine say what suits it. Larger batches use a GPU better; the "
        "time a batch takes is bounded as well, so too large a value does little harm.",
        least=1,
        none_word="auto",
    )
    max_batch_requests: int | None = flag(
        None,
        "Engine",
        "Sequences of one batch at most. auto is 1024, and 32 for the tensorrt-llm engine, as Baseten has it for its "
        "own (not measured here). Lower it only where an engine runs out of memory.",
        least=1,
        none_word="auto",
    )
    fake_dim: int = flag(
        1024, "Testing", "Dimensions of the fake engine's rows. Take those of the model that it stands for.", least=4
    )
    fake_cost_ms: float = flag(0.0, "Testing", "Milliseconds that each batch takes the fake engine.", least=0)
    fake_tokens_per_second: float = flag(
        0.0, "Testing", "Tokens a second of the fake engine; at 0 tokens cost nothing.", least=0
    )
    fake_fault: tuple[str, ...] = flag(
        (),
        "Testing",
        "What goes wrong in the fake engine: ACTION@WHERE:VALUE, as exit@batch:3. May be repeated.",
        env=False,
    )

    def __post_init__(self) -> None:
        """Raises SettingsError for the first setting that can't be."""
        check_flags(self)
        if not self.model_id.strip():
            raise SettingsError("--model-id must not be empty")
        if self.served_model_name is not None and not self.served_model_name.strip():
            raise SettingsError("--served-model-name must not be empty")
        if self.default_prompt is not None and self.default_prompt_name is not None:
            raise SettingsError("--default-prompt and --default-prompt-name exclude each other")
        if not all(name.strip() for name in self.devices.split(",")):
            raise SettingsError("--devices takes names separated by commas")

    @property
    def name(self) -> str:
        """As it is served."""
        return self.served_model_name or self.model_id
