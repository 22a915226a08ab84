"""Traffic: when requests come, and how many texts and tokens each has. Drawn by a seed, or read from a CSV file.

A drawn day is made of streams. Each has a daily curve (a cosine around its peak hour), bursts of ten minutes or so, and
requests whose number of texts is log-uniform: as many requests have 1 to 2 texts as have 1,024 to 2,048.
"""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HOUR = 3600.0
MAX_TEXTS = 2048  # of a request, as the server has it by default
_SIGMA = 0.3  # of the log-normal tokens per text, from request to request
COLUMNS = ("seconds", "texts", "tokens")


class TraceError(ValueError):
    """A trace is wrong; the message is one line."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order in which they come."""

    at: NDArray[np.float64]  # [N] seconds from the beginning
    texts: NDArray[np.int64]  # [N]
    tokens: NDArray[np.int64]  # [N], of all texts of a request together

    def __len__(self) -> int:
        return len(self.at)

    @property
    def seconds(self) -> float:
        """When the last request comes."""
        return float(self.at[-1]) if len(self.at) else 0.0

    def write(self, path: Path) -> None:
        """As `read` has it."""
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(COLUMNS)
            rows.writerows(zip(self.at.round(4).tolist(), self.texts.tolist(), self.tokens.tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One kind of requests."""

    tokens_per_second: float  # mean of a day, without bursts
    max_texts: int  # of a request; the least is 1
    tokens_per_text: float
    peak_hour: float  # of the day
    swing: float  # 0 = the same all day; 1 = from nothing at night to twice the mean
    num_bursts: int = 0  # of a day
    burst_seconds: float = 600.0  # mean
    burst_factor: float = 3.0  # times the rate of the moment

    @property
    def texts_per_request(self) -> float:
        """The mean of a log-uniform number of texts."""
        return (self.max_texts - 1) / math.log(self.max_texts) if self.max_texts > 1 else 1.0


QUERIES = Stream(
    tokens_per_second=600, max_texts=1, tokens_per_text=30, peak_hour=14, swing=0.8, num_bursts=6, burst_seconds=300
)
DOCUMENTS = Stream(
    tokens_per_second=24_000, max_texts=MAX_TEXTS, tokens_per_text=120, peak_hour=14, swing=0.8, num_bursts=12
)
NIGHTLY = Stream(
    tokens_per_second=24_000, max_texts=MAX_TEXTS, tokens_per_text=120, peak_hour=2, swing=0.8, num_bursts=12
)
# by name; mixed: documents alone; beside: queries come with them; apart: documents come by night, queries by day
DAYS = {"mixed": (DOCUMENTS,), "beside": (QUERIES, DOCUMENTS), "apart": (QUERIES, NIGHTLY)}


def draw(streams: tuple[Stream, ...], *, seed: int, hours: float = 24.0, load: float = 1.0) -> Trace:
    """The same for the same seed. `load` multiplies the number of requests."""
    random = np.random.default_rng(seed)
    parts = [_draw_one(stream, random, hours * HOUR, load) for stream in streams]
    at = np.concatenate([part.at for part in parts])
    order = np.argsort(at, kind="stable")
    texts, tokens = (np.concatenate([getattr(part, name) for part in parts])[order] for name in ("texts", "tokens"))
    return Trace(at[order], texts, tokens)


def _draw_one(stream: Stream, random: np.random.Generator, seconds: float, load: float) -> Trace:
    per_second = load * stream.tokens_per_second / (stream.texts_per_request * stream.tokens_per_text)
    bursts = [
        (start, start + random.exponential(stream.burst_seconds))
        for start in random.uniform(0, seconds, round(stream.num_bursts * seconds / (24 * HOUR)))
    ]
    highest = per_second * (1 + stream.swing) * (stream.burst_factor if bursts else 1.0)
    at = np.sort(random.uniform(0, seconds, random.poisson(highest * seconds)))
    rate = per_second * (1 + stream.swing * np.cos((at / HOUR - stream.peak_hour) * 2 * math.pi / 24))
    is_burst = np.zeros(len(at), bool)
    for start, end in bursts:
        is_burst |= (start <= at) & (at < end)
    at = at[random.uniform(0, highest, len(at)) < np.where(is_burst, stream.burst_factor, 1.0) * rate]
    texts = np.exp(random.uniform(0, math.log(stream.max_texts), len(at))).round().astype(np.int64)
    each = stream.tokens_per_text * random.lognormal(-(_SIGMA**2) / 2, _SIGMA, len(at))
    return Trace(at, texts, np.maximum(texts, (texts * each).round().astype(np.int64)))


def read(path: Path) -> Trace:
    """A CSV file with the columns seconds, texts, tokens and a head that names them. Raises TraceError, OSError."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if missing := set(COLUMNS) - set(reader.fieldnames or ()):
            raise TraceError(f"{path.name} lacks the column {min(missing)}")
        try:
            rows = [(float(row["seconds"]), int(row["texts"]), int(row["tokens"])) for row in reader]
        except (TypeError, ValueError):
            raise TraceError(f"line {reader.line_num} of {path.name} has something that is not a number") from None
    rows.sort(key=lambda row: row[0])
    if not rows:
        raise TraceError(f"{path.name} has no requests")
    if not all(math.isfinite(at) and at >= 0 and 1 <= texts <= tokens for at, texts, tokens in rows):
        raise TraceError(f"{path.name}: seconds must be 0 or more, texts at least 1, tokens at least as many as texts")
    at, texts, tokens = zip(*rows, strict=True)
    return Trace(np.array(at, np.float64), np.array(texts, np.int64), np.array(tokens, np.int64))
