"""Every flag of `embedline serve`: one field each, with its default, its bounds and a paragraph on how to choose it.

Built and checked once, then frozen; the parts of the server receive values, not this object.
"""

import dataclasses
import os
import shutil
import sys
from dataclasses import dataclass
from typing import Any

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
_MAX_PORT = 65535


class SettingsError(Exception):
    """A setting that is unknown, malformed or impossible; one line that names the flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """What the command line needs to know of a field beside its name, type and default."""

    help: str
    names: tuple[str, ...] = ()  # () = the field's own
    env: bool = True  # whether the upper-case name is read from the environment
    least: float | None = None
    most: float | None = None
    one_of: tuple[str, ...] = ()


def _flag(default: Any, help: str, **rest: Any) -> Any:
    return dataclasses.field(default=default, metadata={"flag": Flag(help=help, **rest)})


def _one_process_for(num_cores: int) -> int:
    return max(1, (os.cpu_count() or 1) // num_cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Names and environment variables are TEI's where TEI has the flag."""

    model_id: str = _flag(
        DEFAULT_MODEL,
        "The model: a local folder, or a name on the Hugging Face hub, which is looked for in the hub's cache first. "
        "The default is small and quick on a laptop.",
    )
    revision: str | None = _flag(
        None, "Commit, tag or branch on the hub. Give a commit to serve the same weights for ever."
    )
    served_model_name: str | None = _flag(
        None, "The name that answers carry and /v1/models lists; --model-id unless given."
    )
    huggingface_hub_cache: str | None = _flag(
        None, "Where the hub's files are kept. A volume here saves the download at the next start."
    )
    hf_token: str | None = _flag(None, "Token for gated or private models; better given by the variable HF_TOKEN.")
    engine: str = _flag(
        "auto",
        "What computes. auto takes the first engine that is installed and serves the model; /info says which and why. "
        "transformers serves most architectures; fake needs no weights and is for tests and for measuring everything "
        "but the model.",
    )
    engine_python: str = _flag(
        sys.executable, "The interpreter that engine processes run under, where it must be another than the rest's."
    )
    devices: str = _flag(
        "cpu", "Where engines run, separated by commas: one engine process for each. On a machine without a GPU: cpu."
    )
    dtype: str = _flag(
        "auto",
        "Compute type. On a CPU auto is float32.",
        one_of=("auto", "float32", "bfloat16", "float16"),
    )
    pooling: str | None = _flag(
        None,
        "How token vectors become one, where the model's own files do not say, or say wrong.",
        one_of=("cls", "mean", "last-token"),
    )
    hostname: str = _flag(
        "127.0.0.1",
        "The address to listen on: 127.0.0.1 is reached from this machine only, 0.0.0.0 from everywhere. HOSTNAME in "
        "the environment is never read: containers set it to their own name.",
        names=("--hostname", "--host"),
        env=False,
    )
    port: int = _flag(
        8080, "The port to listen on; 0 takes a free one.", names=("--port", "-p"), least=0, most=_MAX_PORT
    )
    prometheus_port: int | None = _flag(
        None,
        "A second port with /metrics, /livez and /readyz, answered by the supervisor even when everything else is "
        "stuck. 9000 is tried if none is given; 0 turns it off.",
        least=0,
        most=_MAX_PORT,
    )
    frontends: int = _flag(
        _one_process_for(4),
        "HTTP processes. The default is one for four cores; more where JSON of many floats is asked for.",
        least=1,
    )
    tokenization_workers: int = _flag(
        _one_process_for(2),
        "Tokenizer processes. One makes about 0.3 million tokens a second; the default is one for two cores.",
        least=1,
    )
    batch_managers: int | None = _flag(
        None, "Processes that form batches; the default is one for two devices. They share the engines out.", least=1
    )
    max_batch_tokens: int = _flag(
        16384,
        "Tokens of one batch at most. Larger batches use a GPU better; the time a batch takes is bounded as well, so "
        "too large a value does little harm.",
        least=1,
    )
    max_batch_requests: int = _flag(1024, "Sequences of one batch at most.", least=1)
    max_client_batch_size: int = _flag(2048, "Inputs of one request at most; more is refused with 400.", least=1)
    max_concurrent_requests: int = _flag(
        4096, "HTTP requests open at once; one more is refused with 429. Raise it for very many small clients.", least=1
    )
    payload_limit: int = _flag(64_000_000, "Bytes of one body at most; more is refused with 413.", least=1)
    auto_truncate: bool = _flag(
        True,
        "Cut texts that are longer than the model takes; without it they are refused with 400.",
        names=("--auto-truncate/--no-auto-truncate",),
    )
    default_prompt_name: str | None = _flag(None, "Which of the model's own prompts is put before each text.")
    default_prompt: str | None = _flag(None, "Words that are put before each text.")
    interactive_max_wait: float = _flag(
        10.0,
        "Seconds that a small request may be expected to wait; over that it is refused with 429 at once. Choose what "
        "your users would wait.",
        least=0,
    )
    bulk_max_wait: float = _flag(300.0, "The same for bulk requests, whose senders are patient.", least=0)
    engine_restart_grace: float = _flag(
        5.0, "Seconds that requests wait for an engine that is being started again; after that 503.", least=0
    )
    heartbeat_timeout: float = _flag(
        10.0,
        "Seconds of silence after which a process is killed and started again. Raise it on machines that stall.",
        least=2,
    )
    batch_timeout: float = _flag(
        60.0,
        "Seconds after which a batch is taken for stuck and its engine is killed and started again; never less than "
        "three times what its tokens should take.",
        least=0.1,
    )
    shutdown_timeout: float = _flag(30.0, "Seconds that open requests get to finish at a stop.", least=0)
    log_level: str = _flag("info", "How much is logged.", one_of=("debug", "info", "warning", "error"))
    fake_dim: int = _flag(1024, "Dimensions of the fake engine's rows.", least=4)
    fake_cost_ms: float = _flag(0.0, "Milliseconds that each batch takes the fake engine.", least=0)
    fake_tokens_per_second: float = _flag(0.0, "Tokens a second of the fake engine; at 0 tokens cost nothing.", least=0)
    fake_fault: tuple[str, ...] = _flag(
        (), "What goes wrong in the fake engine: ACTION@WHERE:VALUE, as exit@batch:3. May be repeated.", env=False
    )

    def __post_init__(self) -> None:
        """Raises SettingsError for the first setting that can't be."""
        for field in dataclasses.fields(self):
            _check(field.name, getattr(self, field.name), field.metadata["flag"])
        if self.default_prompt is not None and self.default_prompt_name is not None:
            raise SettingsError("--default-prompt and --default-prompt-name exclude each other")
        if self.num_batch_managers > len(self.device_list):
            raise SettingsError("--batch-managers must not be more than there are --devices")
        if shutil.which(self.engine_python) is None:
            raise SettingsError("--engine-python is no program here")
        if not all(self.device_list):
            raise SettingsError("--devices takes names separated by commas")

    @property
    def device_list(self) -> tuple[str, ...]:
        """One engine process each."""
        return tuple(name.strip() for name in self.devices.split(","))

    @property
    def num_batch_managers(self) -> int:
        """As asked, or one for two devices."""
        return self.batch_managers or max(1, len(self.device_list) // 2)


def _check(name: str, value: Any, flag: Flag) -> None:
    shown = f"--{name.replace('_', '-')}"
    if value is None:
        return
    if flag.one_of and value not in flag.one_of:
        raise SettingsError(f"{shown} must be one of {', '.join(flag.one_of)}")
    # written so that NaN, which compares false with everything, is refused
    if flag.least is not None and not flag.least <= value < float("inf"):
        raise SettingsError(f"{shown} must be at least {flag.least:g}")
    if flag.most is not None and value > flag.most:
        raise SettingsError(f"{shown} must be at most {flag.most:g}")
