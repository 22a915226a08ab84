"""The list of features. To add one is a folder and an entry here; nothing else names it."""

from server.feature import Feature
from server.features.backfill.feature import BACKFILL
from server.features.bench.feature import BENCH
from server.features.convert.feature import CONVERT
from server.features.grpc.feature import GRPC
from server.features.jobs.feature import JOBS
from server.features.pipelines.feature import PIPELINES
from server.features.quantize.feature import QUANTIZE
from server.features.ray.feature import RAY
from server.features.verify.feature import VERIFY

FEATURES: tuple[Feature, ...] = (VERIFY, CONVERT, QUANTIZE, BACKFILL, BENCH, JOBS, PIPELINES, GRPC, RAY)
