"""Every flag of `embedline serve` that is not one model's, and the models. Checked once, then frozen.

The parts of the server receive values, not this object.
"""

import ipaddress
import re
import shutil
import sys
from dataclasses import dataclass

from engine.machine import cores
from server.settings.flag import SettingsError, check_flags, flag
from server.settings.model import ModelSettings

_MAX_PORT = 65535
MAX_PROCESSES = 256  # of one kind; each takes tens of megabytes before it does anything
_ANY_ORIGIN = _ANY_HOST = "*"
_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")


def _one_process_for(num_cores: int) -> int:
    return max(1, cores.usable() // num_cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Names and environment variables are TEI's where TEI has the flag."""

    models: tuple[ModelSettings, ...] = (ModelSettings(),)
    huggingface_hub_cache: str | None = flag(
        None,
        "Model",
        "Where files from the hub are kept. In a container use a volume, so that the next start does not download "
        "again.",
        default_text="as the hub's own tools have it",
    )
    hf_token: str | None = flag(
        None,
        "Model",
        "Token for gated or private models. Prefer the variable HF_TOKEN, which `ps` does not show.",
        aliases=("--hf-api-token",),
        is_secret=True,
    )
    compiled_cache: str | None = flag(
        None,
        "Engine",
        "Where engines keep compiled models, quantized weights and compiled kernels, so that the next start is fast. "
        "off keeps nothing. A quantized model takes about a byte a parameter; only the newest few are kept. In a "
        "container use a volume.",
        default_text="embedline in XDG_CACHE_HOME or ~/.cache",
    )
    engine_python: str = flag(
        sys.executable,
        "Engine",
        "The Python interpreter for engine processes, if it must differ from the server's.",
        default_text="the server's own",
    )
    hostname: str = flag(
        "127.0.0.1",
        "HTTP",
        "The address to listen on. 127.0.0.1 can be reached from this machine only. 0.0.0.0 exposes the server; set "
        "--ssl-certfile or put a TLS proxy in front. The variable HOSTNAME is never read, because containers set it to "
        "their own name.",
        aliases=("--host",),
        env=False,
    )
    port: int = flag(
        8080, "HTTP", "The port to listen on; 0 takes a free one.", aliases=("-p",), least=0, most=_MAX_PORT
    )
    takeover: bool = flag(
        False,
        "HTTP",
        "Take over from the server of this user that runs on the same --hostname and --port: load the models, then "
        "accept in its place while it finishes its requests and ends. A restart or an upgrade then loses no request "
        "and delays none. Refused where memory does not hold both. On a shared GPU the running server ends first, and "
        "clients wait. Where none runs, this is an ordinary start.",
    )
    strict_model_name: bool = flag(
        False,
        "HTTP",
        "Refuse requests for unknown models with 404. Without it, a server with one model accepts any name, so that "
        "clients need not change when the model does.",
    )
    cors_allow_origin: tuple[str, ...] = flag(
        (),
        "HTTP",
        "Allow web pages of this origin, such as https://example.org, to send requests from a browser. * allows every "
        "page. May be repeated; in the environment, separate with commas. By default none is allowed.",
    )
    max_concurrent_requests: int = flag(
        4096,
        "Limits",
        "The most open HTTP requests. More are refused with 429. Raise it for very many small clients.",
        least=1,
    )
    max_client_batch_size: int = flag(
        2048, "Limits", "The most inputs of one request. More are refused with 400.", least=1
    )
    payload_limit: int = flag(64_000_000, "Limits", "The most bytes of one body. More are refused with 413.", least=1)
    interactive_max_wait: float = flag(
        10.0,
        "Limits",
        "If an interactive request would wait longer than this many seconds, it is refused with 429 at once. Choose "
        "what your users would wait.",
        least=0,
    )
    bulk_max_wait: float = flag(300.0, "Limits", "The same as --interactive-max-wait, for bulk requests.", least=0)
    engine_restart_grace: float = flag(
        5.0,
        "Limits",
        "Seconds that requests wait while an engine restarts. After that they get 503. If clients would rather wait, "
        "raise it above the engine's load time, which is in the log; large models take longer.",
        least=0,
    )
    rerank_document_format: str = flag(
        "object",
        "HTTP",
        'How documents stand in the results of /rerank: object, as {"text": …}, as clients of Cohere, Jina and vLLM '
        "read them, or string, as LiteLLM's provider infinity does. Infinity's own client gets strings either way.",
        one_of=("object", "string"),
    )
    api_key: tuple[str, ...] = flag(
        (),
        "Security",
        "A key that requests must carry, except requests for health and, without --metrics-auth, for metrics. May be "
        "repeated. Every user of this machine can read a command line, so prefer --api-key-file, or the variable "
        "API_KEY with keys separated by commas (empty means none).",
        is_secret=True,
    )
    api_key_file: str | None = flag(
        None,
        "Security",
        "A file with one key a line: name:sha256=HEX, name:KEY, or KEY alone. Names appear in the log, keys never do. "
        "With HEX, made by `printf %s KEY | sha256sum`, the file need not be secret. After a key there may be "
        "weight=NUMBER, its part of the engines while others wait too, and tokens-per-minute=NUMBER, a ceiling. For a "
        "Docker secret: /run/secrets/NAME. It is read again within a second of a change.",
    )
    metrics_auth: bool = flag(
        False, "Security", "Require a key for /metrics too, on both ports. Prometheus can send one as a bearer token."
    )
    allowed_hosts: tuple[str, ...] = flag(
        (),
        "Security",
        "A host name or address, without a port, that requests may have in their Host header, besides localhost and "
        "other loopback names. Others are refused with 403, and so are web pages of other hosts. May be repeated; in "
        "the environment, separate with commas. By default any host may stand there, except where the server listens "
        "on a loopback address and needs no API key: there only localhost may, so that no web page can use the server "
        "through a browser on the same machine. * allows any host. Set it if a proxy on this machine passes on the "
        "public name.",
        default_text="any, or localhost alone",
    )
    ssl_certfile: str | None = flag(
        None,
        "Security",
        "A certificate in PEM, with the chain up to its root. The port then speaks TLS, 1.2 or newer. It is read again "
        "within a second of a change, and so is the key. --prometheus-port stays without TLS.",
    )
    ssl_keyfile: str | None = flag(
        None,
        "Security",
        "The private key of --ssl-certfile in PEM, without a password. Not needed if it is in the same file.",
    )
    log_level: str = flag(
        "info",
        "Logs and metrics",
        "How much the processes log on standard error. debug helps to find faults.",
        one_of=("trace", "debug", "info", "warning", "warn", "error"),  # warn, and trace for debug: as others have them
    )
    request_log: str = flag(
        "all",
        "Logs and metrics",
        "Which requests get a line in the request log, with sizes and durations but never texts: all, errors (every "
        "status but 200), or off. Keep at least errors: the line says what was refused and at which stage.",
        one_of=("all", "errors", "off"),
    )
    request_log_sample_rate: float = flag(
        1.0,
        "Logs and metrics",
        "The share of answered requests that get a line in the request log, chosen at random: 0.01 for one of a "
        "hundred. Requests that fail always get one. Lower it where the log of a busy server costs too much.",
        least=0,
        most=1,
    )
    json_output: bool = flag(False, "Logs and metrics", "Write the log as one JSON object a line, for log collectors.")
    prometheus_port: int | None = flag(
        None,
        "Logs and metrics",
        "A second port with /metrics, /livez and /readyz. The supervisor answers there even if everything else is "
        "stuck. Default: 9000 if it is free. 0 turns it off.",
        least=0,
        most=_MAX_PORT,
        default_text="9000, if it is free",
    )
    frontends: int = flag(
        _one_process_for(4),
        "Processes",
        "How many HTTP processes. Use more if clients ask for much JSON.",
        least=1,
        most=MAX_PROCESSES,
        default_text="one for four cores",
    )
    tokenization_workers: int = flag(
        _one_process_for(2),
        "Processes",
        "How many tokenizer processes. One makes about 0.3 million tokens a second.",
        least=1,
        most=MAX_PROCESSES,
        default_text="one for two cores",
    )
    batch_managers: int | None = flag(
        None,
        "Processes",
        "How many processes that form batches. They divide the engines among them. One is enough for tens of "
        "thousands of requests a second.",
        least=1,
        most=MAX_PROCESSES,
        default_text="one for two engines",
    )
    heartbeat_timeout: float = flag(
        10.0,
        "Processes",
        "Seconds without a heartbeat after which a process is killed and restarted. Raise it on machines that stall.",
        least=2,
    )
    batch_timeout: float = flag(
        60.0,
        "Processes",
        "Seconds after which a batch counts as stuck and its engine is killed and restarted. Never less than three "
        "times the predicted time of the batch.",
        least=0.1,
    )
    drain_delay: float = flag(
        5.0,
        "Processes",
        "Seconds after SIGTERM in which the server goes on accepting connections: /readyz is 503 already, and every "
        "answer closes its connection. Choose more than a balancer needs to notice that. 0 where nothing balances. "
        "Ctrl-C never waits. The images set it to 1, because Docker kills after 10; in Kubernetes set it to 5.",
        least=0,
    )
    shutdown_timeout: float = flag(
        30.0,
        "Processes",
        "Seconds that open requests get to finish at shutdown, after --drain-delay. The processes then get a few more "
        "seconds; whoever stops the server must wait longer than all three. The images set it to 2, because Docker "
        "kills after 10.",
        least=0,
    )
    uds_path: str | None = flag(
        None,
        "Without effect",
        "Accepted from start commands of text-embeddings-inference. The server makes its own folder for sockets.",
    )
    otlp_endpoint: str | None = flag(
        None,
        "Without effect",
        "Accepted from start commands of text-embeddings-inference. No traces are sent; /metrics and the request log "
        "have the duration of each stage.",
    )
    otlp_service_name: str | None = flag(
        None, "Without effect", "Accepted from start commands of text-embeddings-inference, like --otlp-endpoint."
    )
    disable_spans: bool = flag(
        False, "Without effect", "Accepted from start commands of text-embeddings-inference. The log has no spans."
    )

    def __post_init__(self) -> None:
        """Raises SettingsError for the first setting that can't be."""
        check_flags(self)
        self._check_models()
        if shutil.which(self.engine_python) is None:
            raise SettingsError("--engine-python is not a program on this machine")
        if self.takeover and self.port == 0:
            raise SettingsError("--takeover needs the --port of the running server")
        if not all(map(_is_origin, self.cors_allow_origin)):
            raise SettingsError("--cors-allow-origin takes origins such as https://example.org, without a path, or *")
        if not all(map(_is_host, self.allowed_hosts)):
            raise SettingsError("--allowed-hosts takes host names or addresses, without a port, or *")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise SettingsError("--ssl-keyfile needs --ssl-certfile")

    def _check_models(self) -> None:
        assert self.models, "there is a default model"
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise SettingsError("--served-model-name must differ between models")


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return text == _ANY_HOST or bool(_HOST.fullmatch(text))
    return True


def _is_origin(text: str) -> bool:
    """A scheme and a host, as browsers send it; they compare it letter by letter."""
    scheme, separator, host = text.partition("://")
    return text == _ANY_ORIGIN or bool(scheme and separator and host and not set(host) & set("/?# "))
