"""What other clients and the memory of a server notice while it is attacked.

    python -m benchmarks.attacks [--only WORDS] [--rounds N] [--seconds S] [--write]

One whole server on the fake engine, which takes 10 ms a batch, and good clients that send 200 short texts a second. For
each attack of benchmarks/attacks/catalogue.py quiet periods and attacked ones take turns.
"""

import argparse
import contextlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from benchmarks.attacks import keyed
from benchmarks.attacks.attack import Attack
from benchmarks.attacks.attacker import Seen, attacking
from benchmarks.attacks.catalogue import ATTACKS, MODEL, RERANKER
from benchmarks.attacks.watched import RATE, Period, Watched
from benchmarks.measuring.report import Report
from benchmarks.measuring.servers import Recipe, RunningServer, embedline, free_port, running
from benchmarks.peers.models import MINILM
from embedline.bench.load import percentile
from embedline.bench.options import Target
from embedline.bench.requests import HttpRequest, post
from engine.store.model_source import resolve

MAX_TIMES, MAX_GROWTH_MB = 1.5, 200.0  # what is asked for: of others' p99, and of memory
MAX_GROWTH_OF_KEY_MB = 150.0  # of memory, where one key attacks
_BATCH_MS = 10.0
_DIMENSIONS = 4096
_TEXTS = [f"what does query number {number} ask for" for number in range(64)]
_PATIENCE = 120.0  # seconds for its start
_WARM_UP_SECONDS, _SETTLE_SECONDS = 3.0, 1.0
_CHAT = 'Note that the answer can only be "yes" or "no".'  # by which a Qwen3-Reranker is known


@dataclass(slots=True)
class Found:
    """What all rounds of one attack come to."""

    quiet: Period = field(default_factory=Period)
    attacked: Period = field(default_factory=Period)
    times: list[float] = field(default_factory=list)  # of each round: p99 attacked over p99 quiet
    growth_mb: float = 0.0  # the most of a round, by looks at the memory
    peaks_growth_mb: float = 0.0  # the same by the peaks of each process
    num_dead: int = 0  # processes of the server
    max_growth_mb: float = MAX_GROWTH_MB
    seen: Seen = field(default_factory=Seen)

    def add(self, quiet: Period, attacked: Period) -> None:
        """A round."""
        self.quiet.add(quiet)
        self.attacked.add(attacked)
        self.times.append(percentile(attacked.latencies_ms, 99) / percentile(quiet.latencies_ms, 99))
        self.growth_mb = max(self.growth_mb, attacked.pss_mb - quiet.pss_mb)
        self.peaks_growth_mb = max(self.peaks_growth_mb, attacked.peaks_mb - quiet.peaks_mb)

    @property
    def failures(self) -> Counter[str]:
        """Of good clients."""
        return self.quiet.failures + self.attacked.failures

    @property
    def holds(self) -> bool:
        """Whether others notice as little as is asked for."""
        growth = max(self.growth_mb, self.peaks_growth_mb)
        is_calm = fmean(self.times) <= MAX_TIMES and growth <= self.max_growth_mb
        return is_calm and not self.failures and not self.num_dead


def attack_in_rounds(attack: Attack, watched: Watched, port: int, *, rounds: int, seconds: float) -> Found:
    """Quiet and attacked periods in turn. Both of a round have requests at the same times."""
    found, before = Found(), watched.processes()
    if attack in keyed.KEYED_ATTACKS:
        found.max_growth_mb = MAX_GROWTH_OF_KEY_MB
    for number in range(rounds):
        quiet = watched.period(seconds, seed=number, beside=attack.beside)
        with attacking(attack, port, found.seen):
            attacked = watched.period(seconds, seed=number, beside=attack.beside)
        found.add(quiet, attacked)
        watched.period(_SETTLE_SECONDS, seed=number)  # which nobody counts
    found.num_dead = len(before - watched.processes())
    return found


def cells(attack: Attack, found: Found) -> dict[str, object]:
    """A row."""
    quiet, attacked, seen = found.quiet.latencies_ms, found.attacked.latencies_ms, found.seen
    return {
        "attack": attack.name,
        "connections": f"{attack.connections} at once, {seen.connections / seen.seconds:.1f}/s",
        "MB/s": f"{seen.sent_bytes / seen.seconds / 1e6:.2f}",
        "p50 / p99 ms quiet": f"{percentile(quiet, 50):.1f} / {percentile(quiet, 99):.1f}",
        "attacked": f"{percentile(attacked, 50):.1f} / {percentile(attacked, 99):.1f}",
        "p99, times quiet": f"{fmean(found.times):.2f}, at worst {max(found.times):.2f}",
        "another key's s": f"{_median(found.quiet)} / {_median(found.attacked)}",
        "memory MB": f"{found.growth_mb:+.0f}, peaks {found.peaks_growth_mb:+.0f}",
        "others failed": _counts(found.failures),
        "processes died": found.num_dead,
        "answers to the attack": _counts(seen.outcomes),
        "attacker's CPU": f"{seen.cpu_seconds / seen.seconds:.0%}",
        "holds": "yes" if found.holds else "no",
    }


def _median(period: Period) -> str:
    seconds = sorted(period.beside_seconds)
    return f"{percentile(seconds, 50):.2f}" if seconds else "-"


def _counts(counted: Counter[str]) -> str:
    return "; ".join(f"{number} x {what}" for what, number in counted.most_common()) or "none"


def recipe(folder: Path, monitor: int, *more: str) -> Recipe:
    """A server for the attacks: of queries, and of a generative reranker, which has a tokenizer alone."""
    model, reranker = resolve(MINILM).path, folder / "reranker"
    reranker.mkdir()
    shutil.copyfile(model / "tokenizer.json", reranker / "tokenizer.json")
    (reranker / "tokenizer_config.json").write_text(json.dumps({"chat_template": _CHAT}))
    shape = {"hidden_size": 64, "vocab_size": 30_522, "max_position_embeddings": 512}
    kind = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    (reranker / "config.json").write_text(json.dumps(kind | shape))
    config = folder / "embedline.toml"
    tables = {MODEL: model, RERANKER: reranker}
    config.write_text(
        "\n".join(
            f"[[model]]\nmodel-id = {json.dumps(str(path))}\nserved-model-name = {json.dumps(name)}"
            for name, path in tables.items()
        )
    )
    return embedline(
        *("--config", str(config), "--engine", "fake", "--hostname", "127.0.0.1", "--prometheus-port", str(monitor)),
        *("--fake-dim", str(_DIMENSIONS), "--fake-cost-ms", f"{_BATCH_MS:g}", "--request-log", "off"),
        *more,
    )


def good_requests(server: RunningServer) -> list[HttpRequest]:
    """One text each; the key has no effect where none is needed."""
    target = Target("127.0.0.1", server.port, False, "")
    bodies = [{"input": text, "model": MODEL, "encoding_format": "base64"} for text in _TEXTS]
    headers = [f"authorization: Bearer {keyed.GOOD}"]
    return [
        HttpRequest(post(target, "/v1/embeddings", json.dumps(body).encode(), headers=headers), 1) for body in bodies
    ]


@contextlib.contextmanager
def attacked_server(folder: Path, *, has_keys: bool) -> Iterator[tuple[Watched, int, int]]:
    """A server with its good clients, its port, and its monitor's."""
    own, monitor = folder / ("keys" if has_keys else "open"), free_port()
    own.mkdir()
    content = json.dumps({"model": MODEL, "input": _TEXTS[0]}).encode()
    with running(recipe(own, monitor, *(keyed.flags(own) if has_keys else ())), cache=own) as server:

        def ask(seconds: float) -> bytes:
            return keyed.ask(server.port, "POST", "/v1/embeddings", content, key=keyed.GOOD)

        server.wait_for(ask, patience=_PATIENCE)
        watched = Watched(server, good_requests(server))
        watched.period(_WARM_UP_SECONDS, seed=0)  # which nobody counts
        yield watched, server.port, monitor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORDS", help="attacks with these words in their name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each period")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    report = Report("attacks", "Embedline under attack: what other clients and the memory notice")
    with tempfile.TemporaryDirectory() as scratch:
        for attacks, has_keys in ((ATTACKS, False), (keyed.KEYED_ATTACKS, True)):
            if chosen := [attack for attack in attacks if arguments.only in attack.name]:
                with attacked_server(Path(scratch), has_keys=has_keys) as (watched, port, monitor):
                    for attack in chosen:
                        at = monitor if attack.is_on_monitor else port
                        rounds, seconds = arguments.rounds, arguments.seconds
                        found = attack_in_rounds(attack, watched, at, rounds=rounds, seconds=seconds)
                        report.row(cells(attack, found))
    write_notes(report, rounds=arguments.rounds, seconds=arguments.seconds)
    report.finish(write=arguments.write)


def write_notes(report: Report, *, rounds: int, seconds: float) -> None:
    """How it was measured."""
    report.note(
        f"Good clients: {RATE:g} requests of one text a second, at random times; rows of {_DIMENSIONS} numbers as "
        f"base64. The fake engine takes {_BATCH_MS:g} ms a batch. Latencies count from the time a request was due."
    )
    report.note(
        f"{rounds} rounds of {seconds:g} s quiet and {seconds:g} s attacked, with requests at the same times; p50 and "
        f"p99 are of all rounds together, `times quiet` is the mean of the rounds, and the worst one."
    )
    report.note(
        "The attacker is a process with low priority (nice 10) on the same two cores. MB/s is what it sent. `nothing` "
        "is an attacker that does nothing: it shows the noise."
    )
    report.note(
        "Memory: the most that all processes of the server had together (proportional set size, looked at twice a "
        "second), over the quiet period before; `peaks` adds up the peaks of resident memory that each process had."
    )
    report.note(
        f"Holds: the mean of p99 is at most {MAX_TIMES:g} times the quiet one, memory grows by at most "
        f"{MAX_GROWTH_MB:g} MB, no request of others fails, and no process of the server dies."
    )
    report.note("Not shown: attackers that take all of a network or of the cores; several attacks at once.")


if __name__ == "__main__":
    main()
