"""Every flag of `embedline serve` that is not one model's, and the models. Checked once, then frozen.

The parts of the server receive values, not this object.
"""

import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from engine.machine import cores
from engine.types import MAX_CACHE_BYTES
from server.feature import Feature
from server.features.table import FEATURES
from server.settings.flag import Flag, SettingsError, check_flags, flag, flags_of
from server.settings.http_flags import HttpFlags, KeyFlags, LimitFlags, LogFlags
from server.settings.model import ModelSettings

MAX_PROCESSES = 256  # of one kind; each takes tens of megabytes before it does anything
FEATURE_FLAGS = tuple(feature.flags for feature in FEATURES if feature.flags is not None)
_OF_FEATURES = [one for kind in FEATURE_FLAGS for one in flags_of(kind)]
_FIRST_GROUPS = ("Model", "Engine", "HTTP", "Limits")
_LAST_GROUPS = ("Security", "Logs and metrics", "Processes", "Without effect", "Testing")
# The headings of flags, in their order. A feature may have one of its own.
GROUPS = (
    *dict.fromkeys([*_FIRST_GROUPS, *(one.group for one in _OF_FEATURES if one.group not in _LAST_GROUPS)]),
    *_LAST_GROUPS,
)

AUTO, COMPACT, SPREAD = "auto", "compact", "spread"  # topologies

_Flags = TypeVar("_Flags")
_Part = TypeVar("_Part", HttpFlags, LimitFlags, LogFlags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(HttpFlags, LimitFlags, LogFlags, KeyFlags):
    """The settings of a server. Names are TEI's where TEI has the flag."""

    models: tuple[ModelSettings, ...] = (ModelSettings(),)
    features: tuple[Any, ...] = tuple(kind() for kind in FEATURE_FLAGS)  # one of each that has flags
    variables: tuple[str, ...] = field(default=(), compare=False)  # of the environment, which were read
    variables_passed_over: tuple[str, ...] = field(default=(), compare=False)  # they lack the prefix
    variables_unknown: tuple[str, ...] = field(default=(), compare=False)  # they have it, and are no flag's
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
        "off keeps nothing. A compiled model takes about four bytes a parameter, a quantized one a byte; see "
        "--compiled-cache-limit. In a container use a volume.",
        default_text="embedline in XDG_CACHE_HOME or ~/.cache",
    )
    compiled_cache_limit: int = flag(
        MAX_CACHE_BYTES,
        "Engine",
        "The most bytes of compiled models, and of quantized ones, in --compiled-cache. When one is added, those that "
        "were not used for longest are removed until the rest fits. Those that a running server uses stay.",
        least=0,
    )
    cpu_threads: int | None = flag(
        None,
        "Engine",
        "How many threads all engines on the CPU compute with, together; a model alone has them all. Take fewer to "
        "leave cores to other programs. More than cores, on processors that share one, is seldom faster. More than "
        "this process may run at a time, by its CPU set and its container's quota, are refused.",
        least=1,
        default_text="one for each core that this process may use",
    )
    engine_python: str = flag(
        sys.executable,
        "Engine",
        "The Python interpreter for engine processes, if it must differ from the server's.",
        default_text="the server's own",
    )
    topology: str = flag(
        AUTO,
        "Processes",
        "Which parts of the server share a process. spread gives HTTP, tokenizing and batching processes of their own. "
        "compact has them in one process: less memory and less CPU time for a lone query, but a text that kills the "
        "tokenizer ends all connections. Engines have processes of their own in both. auto takes compact for one model "
        "on a CPU with at most four cores, unless the model is static or has a chat template, or a flag asks for more "
        "processes; /info and the log say which and why.",
        one_of=(AUTO, COMPACT, SPREAD),
    )
    frontends: int | None = flag(
        None,
        "Processes",
        "How many HTTP processes. Use more if clients ask for much JSON.",
        least=1,
        most=MAX_PROCESSES,
        default_text="one for four cores, and one in compact",
    )
    tokenization_workers: int | None = flag(
        None,
        "Processes",
        "How many tokenizer processes. One makes about 0.3 million tokens a second. With 0 each frontend tokenizes its "
        "own requests: less memory and a faster answer to a lone query, but large requests hold up small ones by up to "
        "5 ms at a time, a single text of 50,000 characters by 50 ms, and a text that kills the tokenizer kills its "
        "frontend.",
        least=0,
        most=MAX_PROCESSES,
        default_text="one for two cores, and none in compact",
    )
    batch_managers: int | None = flag(
        None,
        "Processes",
        "How many processes that form batches. They divide the engines among them. One is enough for tens of "
        "thousands of requests a second.",
        least=1,
        most=MAX_PROCESSES,
        default_text="one for two engines, and none in compact",
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
        assert self.models, "there is a default model"
        if len({model.name for model in self.models}) < len(self.models):
            raise SettingsError("--served-model-name must differ between models")
        self._check_loras()
        found = cores.find()
        if self.cpu_threads is not None and self.cpu_threads > found.most_threads:
            raise SettingsError(f"--cpu-threads must be at most {found.most_threads} here: {found}")
        if shutil.which(self.engine_python) is None:
            raise SettingsError("--engine-python is not a program on this machine")
        self.check_http()

    def _check_loras(self) -> None:
        """Raises SettingsError where a request could mean two adapters, or an adapter and a model, by one name."""
        names = {model.name for model in self.models}
        bases: dict[str, ModelSettings] = {}  # by their adapters' names
        for model in self.models:
            for name, _ in model.loras:
                if name in names:
                    raise SettingsError(f"--lora {name} has the name of a served model; call it something else")
                if name in bases:
                    if bases[name] is model:
                        raise SettingsError(f"--lora {name} is given twice")
                    raise SettingsError(
                        f"--lora {name} would be of two models: each has its own in its [[model]] table"
                    )
                bases[name] = model
        for name, model in bases.items():
            if (whole := f"{model.name}:{name}") in names:
                raise SettingsError(f"--lora {name}: it is called {whole}, too, which is another's name")

    def part(self, kind: type[_Part]) -> _Part:
        """The flags of one of the classes that this one is made of."""
        return kind(**{one.name: getattr(self, one.name) for one in fields(kind)})

    def of(self, kind: type[_Flags]) -> _Flags:
        """The flags of a feature."""
        return next((each for each in self.features if isinstance(each, kind)), None) or kind()

    def features_on(self) -> list[tuple[Feature, Any]]:
        """The features that the flags ask for, each with what its own flag is given."""
        given = [(one, getattr(self.of(one.flags), one.switch[0])) for one in FEATURES if one.flags is not None]
        return [(feature, value) for feature, value in given if value is not None]


def server_flags() -> list[Flag]:
    """Every flag of `embedline serve` that is not one model's: the server's own, then those of features."""
    return [*flags_of(Settings), *_OF_FEATURES]


def by_group(flags: Iterable[Flag]) -> list[Flag]:
    """The flags in the order in which help and pages show them."""
    return sorted(flags, key=lambda flag: GROUPS.index(flag.group))
