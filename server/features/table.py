"""The list of features. To add one is a folder and an entry here, or a file and an entry if it is one command; nothing
else names it."""

from server.feature import Command, Feature
from server.features.backfill.feature import BACKFILL
from server.features.convert.feature import CONVERT
from server.features.grpc.feature import GRPC
from server.features.jobs.feature import JOBS
from server.features.pipelines.feature import PIPELINES
from server.features.ray.feature import RAY
from server.features.verify.feature import VERIFY
from server.settings.flag import HUB_FLAGS

_BENCH = Feature(name="bench", commands={"bench": Command(function="server.features.bench:bench")})
_QUANTIZE = Feature(
    name="quantize",
    commands={"quantize": Command(function="server.features.quantize:quantize", flags=HUB_FLAGS, before="health")},
)
FEATURES: tuple[Feature, ...] = (VERIFY, CONVERT, _QUANTIZE, BACKFILL, _BENCH, JOBS, PIPELINES, GRPC, RAY)
