"""Every flag of `embedline serve` that is not one model's, and the models. Checked once, then frozen.

The parts of the server receive values, not this object.
"""

import os
import shutil
import sys
from dataclasses import dataclass

from server.settings.flag import SettingsError, check_flags, flag
from server.settings.model import ModelSettings

_MAX_PORT = 65535
MAX_PROCESSES = 256  # of one kind; each takes tens of megabytes before it does anything
_ANY_ORIGIN = "*"


def _one_process_for(num_cores: int) -> int:
    return max(1, (os.cpu_count() or 1) // num_cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Names and environment variables are TEI's where TEI has the flag."""

    models: tuple[ModelSettings, ...] = (ModelSettings(),)
    huggingface_hub_cache: str | None = flag(
        None,
        "Model",
        "Where the hub's files are kept. A volume here saves the download at the next start.",
        default_text="as the hub's own tools have it",
    )
    hf_token: str | None = flag(
        None,
        "Model",
        "Token for gated or private models; better given by the variable HF_TOKEN, which `ps` does not show.",
        aliases=("--hf-api-token",),
        is_secret=True,
    )
    compiled_cache: str | None = flag(
        None,
        "Engine",
        "Where engines keep what they make of a model, so that the next start is quick: compiled models, quantized "
        "weights and compiled kernels; off keeps none. A quantized model takes about a byte a parameter, and the "
        "newest few are kept. In a container, a volume.",
        default_text="embedline in XDG_CACHE_HOME or ~/.cache",
    )
    engine_python: str = flag(
        sys.executable,
        "Engine",
        "The interpreter that engine processes run under, where it must be another than the rest's.",
        default_text="the server's own",
    )
    hostname: str = flag(
        "127.0.0.1",
        "HTTP",
        "The address to listen on: 127.0.0.1 is reached from this machine only, 0.0.0.0 from everywhere. HOSTNAME in "
        "the environment is never read: containers set it to their own name.",
        aliases=("--host",),
        env=False,
    )
    port: int = flag(
        8080, "HTTP", "The port to listen on; 0 takes a free one.", aliases=("-p",), least=0, most=_MAX_PORT
    )
    strict_model_name: bool = flag(
        False,
        "HTTP",
        "Refuse requests that name another model than those served with 404. Without it any name will do where one "
        "model is served, so that clients need not be told of a new one.",
    )
    cors_allow_origin: tuple[str, ...] = flag(
        (),
        "HTTP",
        "Web pages of this origin, such as https://example.org, may ask from a browser; * is every page there is. May "
        "be repeated; in the environment, separated by commas. None may unless given.",
    )
    max_concurrent_requests: int = flag(
        4096,
        "Limits",
        "HTTP requests open at once; one more is refused with 429. Raise it for very many small clients.",
        least=1,
    )
    max_client_batch_size: int = flag(
        2048, "Limits", "Inputs of one request at most; more is refused with 400.", least=1
    )
    payload_limit: int = flag(64_000_000, "Limits", "Bytes of one body at most; more is refused with 413.", least=1)
    interactive_max_wait: float = flag(
        10.0,
        "Limits",
        "Seconds that a small request may be expected to wait; over that it is refused with 429 at once. Choose what "
        "your users would wait.",
        least=0,
    )
    bulk_max_wait: float = flag(300.0, "Limits", "The same for bulk requests, whose senders are patient.", least=0)
    engine_restart_grace: float = flag(
        5.0,
        "Limits",
        "Seconds that requests wait for an engine that is being started again; after that 503. Raise it above what the "
        "engine takes to load (its log says how long), where clients would rather wait: large models take longer.",
        least=0,
    )
    api_key: tuple[str, ...] = flag(
        (),
        "Security",
        "A key that every request must carry, but those for health and, without --metrics-auth, for metrics. May be "
        "repeated. Every user of this machine can read a command line, so better use API_KEY, which takes several "
        "separated by commas (empty is none), or --api-key-file.",
        is_secret=True,
    )
    api_key_file: str | None = flag(
        None,
        "Security",
        "A file with one key a line: name:sha256=HEX, name:KEY, or KEY alone. The names stand in the log, the keys "
        "nowhere. With HEX, made by `printf %s KEY | sha256sum`, the file need not be secret. For a Docker secret: "
        "/run/secrets/NAME. Read once, at the start.",
    )
    metrics_auth: bool = flag(
        False, "Security", "Ask for a key on /metrics too, on both ports. Prometheus can send one as a bearer token."
    )
    log_level: str = flag(
        "info",
        "Logs and metrics",
        "How much the processes log of themselves on standard error; debug is for finding faults.",
        one_of=("trace", "debug", "info", "warning", "warn", "error"),  # warn, and trace for debug: as others have them
    )
    request_log: str = flag(
        "all",
        "Logs and metrics",
        "Which requests get a line in the log, with sizes and durations, never with texts: all, errors (those that "
        "were not answered with 200), off. Keep errors at least: a line says what was refused, and at which stage.",
        one_of=("all", "errors", "off"),
    )
    json_output: bool = flag(
        False, "Logs and metrics", "Write the log as one JSON object a line, for machines that collect it."
    )
    prometheus_port: int | None = flag(
        None,
        "Logs and metrics",
        "A second port with /metrics, /livez and /readyz, answered by the supervisor even when everything else is "
        "stuck. 9000 is tried if none is given; 0 turns it off.",
        least=0,
        most=_MAX_PORT,
        default_text="9000, if it is free",
    )
    frontends: int = flag(
        _one_process_for(4),
        "Processes",
        "HTTP processes. More where JSON of many floats is asked for.",
        least=1,
        most=MAX_PROCESSES,
        default_text="one for four cores",
    )
    tokenization_workers: int = flag(
        _one_process_for(2),
        "Processes",
        "Tokenizer processes. One makes about 0.3 million tokens a second.",
        least=1,
        most=MAX_PROCESSES,
        default_text="one for two cores",
    )
    batch_managers: int | None = flag(
        None,
        "Processes",
        "Processes that form batches. They share the engines out; one is enough for tens of thousands of requests a "
        "second.",
        least=1,
        most=MAX_PROCESSES,
        default_text="one for two engines",
    )
    heartbeat_timeout: float = flag(
        10.0,
        "Processes",
        "Seconds of silence after which a process is killed and started again. Raise it on machines that stall.",
        least=2,
    )
    batch_timeout: float = flag(
        60.0,
        "Processes",
        "Seconds after which a batch is taken for stuck and its engine is killed and started again; never less than "
        "three times what its tokens should take.",
        least=0.1,
    )
    shutdown_timeout: float = flag(
        30.0,
        "Processes",
        "Seconds that open requests get to finish at a stop. The processes then get a few more; whoever stops the "
        "server must wait for longer than both. The images set it to 3, as Docker kills after 10.",
        least=0,
    )
    uds_path: str | None = flag(
        None,
        "Without effect",
        "Taken from start commands of text-embeddings-inference. Sockets lie in a folder that the server makes for "
        "itself.",
    )
    otlp_endpoint: str | None = flag(
        None,
        "Without effect",
        "Taken from start commands of text-embeddings-inference. No traces are sent; /metrics and the request log have "
        "how long each stage took.",
    )
    otlp_service_name: str | None = flag(
        None, "Without effect", "Taken from start commands of text-embeddings-inference, as --otlp-endpoint is."
    )
    disable_spans: bool = flag(
        False, "Without effect", "Taken from start commands of text-embeddings-inference. The log has no spans anyway."
    )

    def __post_init__(self) -> None:
        """Raises SettingsError for the first setting that can't be."""
        check_flags(self)
        self._check_models()
        if shutil.which(self.engine_python) is None:
            raise SettingsError("--engine-python is no program here")
        if not all(map(_is_origin, self.cors_allow_origin)):
            raise SettingsError("--cors-allow-origin takes origins such as https://example.org, without a path, or *")

    def _check_models(self) -> None:
        assert self.models, "there is a default model"
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise SettingsError("--served-model-name must be another for each model")


def _is_origin(text: str) -> bool:
    """A scheme and a host, as browsers send it; they compare it letter by letter."""
    scheme, separator, host = text.partition("://")
    return text == _ANY_ORIGIN or bool(scheme and separator and host and not set(host) & set("/?# "))
