"""The list of features. To add one is a folder and an entry here, or a file and an entry if it is one command; nothing
else names it."""

from server.feature import Command, Feature, Group
from server.features.grpc.feature import GRPC
from server.features.jobs.feature import JOBS
from server.features.pipelines.feature import PIPELINES
from server.settings.flag import HUB_FLAGS

_CHANGE_ROWS = (
    "template",
    "pooling",
    "max_input_length",
    "engine",
    "devices",
    "dtype",
    "quantization",
    "tensorrt_llm_model_class",
    "convert",
)

_VERIFY = Feature(
    name="verify",
    commands={
        "verify": Command(
            function="server.features.verify.command:verify",
            flags=(*HUB_FLAGS, *_CHANGE_ROWS, "compiled_cache"),
            before="compile",
        )
    },
)
_CONVERT = Feature(
    name="convert",
    commands={
        "convert": Command(
            function="server.features.convert.command:convert", flags=(*HUB_FLAGS, "template"), before="health"
        )
    },
    prepares="server.features.convert.start:without_pickles",
    fetches="engine.convert.plan:patterns",
)
_ADAPTERS = Feature(name="adapters", prepares="server.features.adapters.start:merged")
_OF_ENGINE = ("compiled_cache", "cpu_threads", "engine_python", "tokenization_workers", "batch_managers")

_BACKFILL = Feature(
    name="backfill",
    commands={
        "backfill": Command(
            function="server.features.backfill.command:backfill", flags=(*HUB_FLAGS, *_OF_ENGINE), is_of_model=True
        )
    },
)
_RAY = Feature(
    name="ray",
    commands={
        "ray": Group(
            help="Whole servers on a Ray cluster.",
            functions={
                "serve": "server.features.ray.command:serve",
                "manifest": "server.features.ray.command:manifest",
            },
        )
    },
)
_BENCH = Feature(name="bench", commands={"bench": Command(function="server.features.bench:bench")})
_QUANTIZE = Feature(
    name="quantize",
    commands={"quantize": Command(function="server.features.quantize:quantize", flags=HUB_FLAGS, before="health")},
)
FEATURES: tuple[Feature, ...] = (
    _VERIFY,
    _CONVERT,
    _ADAPTERS,
    _QUANTIZE,
    _BACKFILL,
    _BENCH,
    JOBS,
    PIPELINES,
    GRPC,
    _RAY,
)
