"""The flags of one model, which `--config` can give for several. Built and checked once, then frozen."""

import re
from dataclasses import dataclass

from engine.model.tasks import Task
from server.settings.flag import SettingsError, check_flags, flag

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
_NO_NAME = re.compile(r"[\s:]")  # of an adapter
_DTYPES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The settings of a model. Names are TEI's where TEI has the flag."""

    model_id: str = flag(
        DEFAULT_MODEL,
        "Model",
        "The model: a local folder, or a name on the Hugging Face hub. The hub's local cache is searched first. The "
        "default is small and fast on a laptop. One model may stand without the flag, as in `embedline serve "
        "BAAI/bge-m3`. Repeat the flag to serve several models; clients choose by the served "
        "name. Then repeat --revision, --served-model-name and --compiled-model in the same order, or leave them out. "
        "Every other flag applies to all models. The environment variable names one model.",
        is_own=True,
    )
    revision: str | None = flag(
        None,
        "Model",
        "Commit, tag or branch on the hub. Give a commit to serve the same weights every time.",
        is_own=True,
    )
    served_model_name: str | None = flag(
        None,
        "Model",
        "The name in answers and in /v1/models; by default the --model-id. Several models need different names.",
        is_own=True,
    )
    task: str = flag(
        "auto",
        "Model",
        "What the model is for. auto reads it from the model's files; `embedline inspect` says what was found and in "
        "which file. Set it if the files say too little (rerank for a generative reranker with an unusual name), or "
        "if you want another use: embed for the embeddings of a classifier's encoder, sparse for those of a masked "
        "language model. A task that the model has no head for is refused at the start.",
        one_of=("auto", *Task),
    )
    template: str | None = flag(
        None,
        "Model",
        "The template that a reranker puts pairs into. Set it if the start asks for it: then the model's files do not "
        "say which one the model was made with, and with another one its scores mean nothing. Qwen3-Reranker, "
        "mxbai-rerank-v2, bge-reranker-v2-gemma, zerank or ctxl-rerank-v2; none for a classifier that takes pairs as "
        "they are; or a JSON file with the parts of a template (docs/models.md).",
    )
    pooling: str | None = flag(
        None,
        "Model",
        "How token vectors are pooled into one vector. Set it if the model's files do not say, or are wrong. splade "
        "gives sparse weights of vocabulary entries from a masked language model.",
        aliases=("--pooling-method",),
        one_of=("cls", "mean", "last-token", "splade"),
    )
    dense_path: str | None = flag(
        None,
        "Model",
        "The folder of the model's Dense module, as in text-embeddings-inference. It must be the one that modules.json "
        "names. Another one is refused, because it would give other rows.",
    )
    trust_config_key: tuple[str, ...] = flag(
        (),
        "Model",
        "A key of config.json that is refused, and that changes no row as you know: it is passed over. The start names "
        "the keys that it refuses, because the model's own code could compute something else by them. auto_map stands "
        "for unknown code that computes the same as transformers' own class. May be repeated.",
    )
    lora: tuple[str, ...] = flag(
        (),
        "Model",
        "A LoRA adapter of the model, as NAME=FOLDER: requests choose it by its name, as if it were a model, and texts "
        "of several adapters are computed together. May be repeated. Several models have theirs in their [[model]] "
        "tables of --config. docs/adapters.md says more.",
    )
    max_input_length: int | None = flag(
        None,
        "Model",
        "The most tokens of a text, special tokens included. Set it below the model's own limit to make long texts "
        "cheaper. Longer texts are truncated or refused, see --auto-truncate.",
        aliases=("--max-model-len",),
        least=8,
    )
    auto_truncate: bool = flag(
        True,
        "Model",
        "Truncate texts that are longer than the model's limit. With --no-auto-truncate they are refused with 400.",
    )
    default_prompt_name: str | None = flag(
        None,
        "Model",
        "Which of the model's own prompts is put before each text; `embedline inspect` lists them. Choose the prompt "
        "for what clients send most. A request can name another one.",
    )
    default_prompt: str | None = flag(
        None,
        "Model",
        "A prompt that is put before each text, for a model that was trained with a prompt but does not list it.",
    )
    int8_ranges: str | None = flag(
        None,
        "Model",
        "A .npy or .json file with the lowest and the highest number of each dimension in the embeddings of usual "
        "texts, two rows in all, as sentence-transformers' quantize_embeddings takes them. Rows that are asked for as "
        "int8 or uint8 are cut into these ranges; without them each row is scaled by its own largest number. By "
        "default int8_ranges.npy or int8_ranges.json of the model's folder, if there is one.",
    )
    convert: str = flag(
        "auto",
        "Model",
        "What is done with weights that are pickles (pytorch_model.bin), which can run code when they are read. auto "
        "lets the first start convert them to safetensors, in an isolated process, and keeps the copy in "
        "--compiled-cache. never refuses such a model; `embedline convert` makes a folder that is served. The same "
        "holds for the folder of an adapter, which the first start merges into its base.",
        one_of=("auto", "never"),
    )
    engine: str = flag(
        "auto",
        "Engine",
        "What computes the model. auto takes the first engine that is installed and can serve the model: on a CPU "
        "openvino, then transformers; on a GPU fused, then transformers. tensorrt-llm serves only if you name it, "
        "until it has run on a GPU. /info says which engine was chosen and why. fake needs no weights; use it for "
        "tests and to measure everything but the model.",
    )
    devices: str = flag(
        "auto",
        "Engine",
        "Where engines run, with one engine process for each device. auto takes the first GPU of compute capability "
        "8.0 or more, else the CPU; `embedline inspect` says which and why. cpu; cuda for all GPUs in "
        "CUDA_VISIBLE_DEVICES; or some by number, such as cuda:0,cuda:2. Each device holds the whole model.",
    )
    dtype: str = flag(
        "auto",
        "Engine",
        "The type to compute in. float32 gives the same rows on every machine; say so where several machines fill one "
        "index. auto is bfloat16 on a GPU. On a CPU it is float32, or bfloat16 for embeddings if the CPU has "
        "instructions for it (avx512_bf16, AMX) and the model's rows are near enough to those in float32; the log and "
        "/info say so. float16 on a CPU is for those with instructions for it (avx512_fp16, AMX-FP16). fp32 and float "
        "mean float32, bf16 means bfloat16, fp16 and half mean float16.",
        one_of=("auto", "float32", "bfloat16", "float16"),
        synonyms=_DTYPES,
    )
    quantization: str = flag(
        "auto",
        "Engine",
        "Compute with 8-bit numbers: faster, with slightly different rows. The difference is measured and logged at "
        "load. int8 is for CPUs, fp8 for GPUs of compute capability 8.9 or more; it ran on one H100, with embeddings "
        "alone. auto changes nothing on a CPU; on a GPU it uses fp8 for large models. none never quantizes.",
        one_of=("none", "auto", "fp8", "int8"),
    )
    compiled_model: str | None = flag(
        None,
        "Engine",
        "A folder that `embedline compile` made of this model, in an image or on a volume, for the openvino engine: "
        "nothing is converted at a first start, and neither torch nor transformers is imported. Every byte is compared "
        "with its sums, and the self-test is run again on this CPU. If it is of another model or version, or damaged, "
        "the log says so, and the model is compiled as without it.",
        is_own=True,
    )
    attention: str | None = flag(
        None,
        "Without effect",
        "Accepted from start commands of earlier versions, where it chose an attention kernel for the fused engine. "
        "That engine attends by Embedline's own kernel alone, as tiles meant then.",
        one_of=("auto", "tiles"),
    )
    tensorrt_llm_model_class: str = flag(
        "embedline",
        "Engine",
        "For the tensorrt-llm engine. embedline uses Embedline's own model class, which pools and scores as the "
        "model's files say. stock uses TensorRT-LLM's class; few models have one. Choose stock to compare the two, or "
        "for a model without a class of ours.",
        one_of=("embedline", "stock"),
    )
    tensorrt_llm_cuda_graphs: bool = flag(
        False,
        "Engine",
        "For the tensorrt-llm engine. Record CUDA graphs of small batches at load, so that a single query costs the "
        "host less. This takes GPU memory and a longer start. Larger batches run without graphs.",
    )
    gpu_memory_share: float | None = flag(
        None,
        "Engine",
        "The share of a GPU's memory that each of the model's engines may use, if several engines of this server "
        "share the GPU: 0.5 is half. auto divides what is left equally. Give a large model more than a small one. "
        "Each engine needs about half a GB more for its CUDA context.",
        least=0.01,
        most=1,
        none_word="auto",
    )
    max_batch_tokens: int | None = flag(
        None,
        "Engine",
        "The most tokens of one batch. auto uses what the engine measured at warm-up. Larger batches use a GPU "
        "better. A batch's time is limited as well, so too large a value does little harm. Documents behind one query "
        "may be computed together for longer while no queries come, but never more tokens than this.",
        least=1,
        none_word="auto",
    )
    max_batch_requests: int | None = flag(
        None,
        "Engine",
        "The most sequences of one batch. auto is 1024, and 256 for the tensorrt-llm engine, as in Baseten's engine "
        "(not measured here). Lower it only if an engine runs out of memory.",
        least=1,
        none_word="auto",
    )
    latency_spin: float = flag(
        0.0,
        "Engine",
        "Milliseconds for which an engine that has computed a lone text looks for the next one before it sleeps. One "
        "that comes in that time does not wait until a thread wakes. After each such text it uses a whole core for so "
        "long, or until something comes, so it is for machines with a core to spare. 0 sleeps at once.",
        least=0,
        most=1000,
    )
    fake_dim: int = flag(
        1024, "Testing", "Dimensions of the fake engine's rows. Take those of the model that it replaces.", least=4
    )
    fake_cost_ms: float = flag(0.0, "Testing", "Milliseconds that the fake engine takes for each batch.", least=0)
    fake_tokens_per_second: float = flag(
        0.0, "Testing", "Tokens a second of the fake engine. 0: tokens cost no time.", least=0
    )
    fake_fault: tuple[str, ...] = flag(
        (),
        "Testing",
        "A fault to inject into the fake engine: ACTION@WHERE:VALUE, such as exit@batch:30, on one device with /DEVICE "
        "behind it. May be repeated.",
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
            raise SettingsError("--default-prompt and --default-prompt-name can't both be given")
        if not all(name.strip() for name in self.devices.split(",")):
            raise SettingsError("--devices takes names separated by commas")
        for text in self.lora:
            name, _, folder = text.partition("=")
            if not name.strip() or not folder.strip():
                raise SettingsError(f"--lora must be NAME=FOLDER, and is {text!r}")
            if _NO_NAME.search(name.strip()):
                raise SettingsError(
                    f"--lora {text!r}: a name has no white space and no colon, which stands between a model's name and "
                    "an adapter's or a prompt's"
                )

    @property
    def needs_modules(self) -> bool:
        """Whether nothing but the model's modules.json says what is done with its token rows."""
        return self.pooling is None and self.task not in (Task.RERANK, Task.CLASSIFY, Task.TOKEN_CLASSIFY)

    @property
    def loras(self) -> tuple[tuple[str, str], ...]:
        """The names of the LoRA adapters, and their folders."""
        pairs = (text.partition("=") for text in self.lora)
        return tuple((name.strip(), folder.strip()) for name, _, folder in pairs)

    @property
    def name(self) -> str:
        """The name that the model is served under."""
        return self.served_model_name or self.model_id
