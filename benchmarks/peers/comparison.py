"""The servers that run side by side, and what each of them does with every load."""

import contextlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.measuring.graded_pairs import correlation, graded_pairs
from benchmarks.measuring.load import measure
from benchmarks.measuring.processes import tree_peak_rss_mb, tree_pss_mb
from benchmarks.measuring.report import Report
from benchmarks.measuring.servers import Recipe, RunningServer, ServerFailed
from benchmarks.peers.cases import Case
from benchmarks.peers.figures import IDLE_MEMORY, LOWEST_COSINE, MEMORY, SPEARMAN, Figures

_WARM_UP_SECONDS = 2.0
_IDLE_SECONDS = 3.0  # from its first answer until its memory is read
_PATIENCE = 600.0  # seconds, for a start: 0.6 billion parameters are converted in three minutes


class Comparison:
    """The servers that run, and the report that fills."""

    def __init__(self, report: Report, *, starts: Sequence[str]) -> None:
        self.servers: list[RunningServer] = []
        self.figures: list[Figures] = []
        self.facts: defaultdict[str, dict[str, float]] = defaultdict(dict)  # what no load tells: name, server, value
        self._report = report
        self._starts = starts

    def start(self, recipe: Recipe, stack: contextlib.ExitStack, first: Case) -> None:
        """Start it with an empty cache and perhaps again with a filled one, which then stays; time each to the first
        answer, and note its memory before it is asked anything else."""
        cache = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cells: dict[str, str] = {}
        with contextlib.ExitStack() as attempt:
            try:
                for start in self._starts:
                    attempt.close()
                    server = RunningServer(recipe, cache=cache)
                    attempt.callback(server.stop)
                    cells[f"{start} start s"] = f"{_wait_for_answer(server, first):.1f}"
                    time.sleep(_IDLE_SECONDS)
                    self.facts[IDLE_MEMORY][server.name] = idle = tree_pss_mb(server.process.pid)
                    cells[f"{start} start, idle PSS MB"] = f"{idle:.0f}"
            except ServerFailed as error:
                self._report.row({"server": recipe.name, "error": error})
                return
            stack.enter_context(attempt.pop_all())
        self.servers.append(server)
        self._report.row({"server": recipe.name, **cells})

    def compare_rows(self, texts: Sequence[str], reference: str) -> None:
        """Cosines between the rows of each server and those of the reference, and how each ranks graded pairs."""
        rows, pairs, ranked = {}, graded_pairs(), {}
        for server in self.servers:
            try:
                rows[server.name] = server.embed(texts)
                ranked[server.name] = correlation(pairs.grades, server.embed(pairs.texts))
            except (ServerFailed, OSError) as error:
                self._report.row({"server": server.name, "error": error})
        against = rows.get(reference)
        for name, values in rows.items():
            if against is None or name not in ranked:
                continue
            cosines = np.einsum("nd,nd->n", values, against) / (
                np.linalg.norm(values, axis=1) * np.linalg.norm(against, axis=1)
            )
            self.facts[LOWEST_COSINE][name], self.facts[SPEARMAN][name] = float(cosines.min()), ranked[name]
            cells = {LOWEST_COSINE: f"{cosines.min():.6f}", "mean cosine": f"{cosines.mean():.6f}"}
            self._report.row({"server": name, "against": reference, **cells, SPEARMAN: f"{ranked[name]:.2f}"})

    def compare_scores(self, case: Case, reference: str) -> None:
        """The largest difference between the scores of each server and those of the reference."""
        assert case.queries is not None, "scores are a reranker's"
        query, documents, scores = case.queries.texts[0], case.corpus.texts[: case.batch_size], {}
        for server in self.servers:
            try:
                scores[server.name] = server.score(query, documents)
            except (ServerFailed, OSError) as error:
                self._report.row({"server": server.name, "error": error})
        against = scores.get(reference)
        for name, values in scores.items():
            if against is not None:
                worst = float(np.abs(values - against).max())
                self._report.row({"server": name, "against": reference, "largest difference": f"{worst:.6f}"})

    def warm_up(self, loads: Sequence[Case]) -> None:
        """Some seconds of each load for each server, which nobody counts."""
        for server in self.servers:
            for case in loads:
                requests = case.requests(server.port, documents_field=server.documents_field)
                load = case.load if case.queries else replace(case.load, seconds=_WARM_UP_SECONDS)
                measure(server.process.pid, server.port, requests, load)

    def run(self, case: Case, round_number: int) -> None:
        """Every server gets the load, one after the other."""
        for server in self.servers:
            requests = case.requests(server.port, documents_field=server.documents_field)
            measured = measure(server.process.pid, server.port, requests, case.load, gap=case.gap)
            figures = Figures(str(round_number), case.name, server.name, case.corpus.tokens_per_text, measured)
            self.figures.append(figures)
            self._report.row(figures.row(), figures.raw())

    def memory(self) -> None:
        """After everything that was asked of them."""
        for server in self.servers:
            sizes = {MEMORY: tree_pss_mb(server.process.pid), "peak RSS MB": tree_peak_rss_mb(server.process.pid)}
            self.facts[MEMORY][server.name] = sizes[MEMORY]
            self._report.row({"server": server.name, **{name: f"{size:.0f}" for name, size in sizes.items()}})


def _wait_for_answer(server: RunningServer, first: Case) -> float:
    """Seconds from the start to the first answer. Raises ServerFailed."""
    text, queries = first.corpus.texts[0], first.queries
    if queries is None:
        return server.wait_for_answer(text)
    return server.wait_for(lambda seconds: server.score(queries.texts[0], [text], patience=seconds), patience=_PATIENCE)
