"""Plants mistakes one at a time in a copy of the tree, and says which of them the tests find.

    python -m tests.planted_mistakes                  the nearest tests of the default tier
    python -m tests.planted_mistakes --all            then the rest of the default tier, then the full tier
    python -m tests.planted_mistakes --only "A key"    those whose names begin so

The text that a mistake replaces must stand in its package exactly once, in whatever file. Ends with 1 where a mistake
was not found, or could not be planted.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Mistake:
    """One wrong line."""

    name: str
    package: str  # a folder
    right: str
    wrong: str
    near: str  # tests that lie nearest, separated by spaces


MISTAKES = (
    Mistake(
        "A page of shared memory whose cells overlap",
        "wire",
        "self._next_cell += 8 * count",
        "self._next_cell += 4 * count",
        "tests/wire",
    ),
    Mistake(
        "A large frame that begins a byte early",
        "wire",
        "self._large_filled = self._end - body",
        "self._large_filled = self._end - body - 1",
        "tests/wire",
    ),
    Mistake(
        "A peer of an older version is let in",
        "wire",
        "if version != VERSION:",
        "if version > VERSION:",
        "tests/wire/test_frames.py",
    ),
    Mistake(
        "Texts that are far too long lose the wrong end",
        "tokenizer_pool",
        "if truncation is Truncation.RIGHT else slice(-max_chars, None)",
        "if truncation is Truncation.LEFT else slice(-max_chars, None)",
        "tests/tokenizer_pool",
    ),
    Mistake(
        "Bulk work goes before interactive work",
        "tokenizer_pool",
        "(self._bulk if self._bulk and bulk_is_due else self._interactive)",
        "(self._bulk if self._bulk else self._interactive)",
        "tests/tokenizer_pool",
    ),
    Mistake(
        "Ids of the greatest length count as truncated",
        "tokenizer_pool",
        "is_long = seqlens > max_seqlen",
        "is_long = seqlens >= max_seqlen",
        "tests/tokenizer_pool",
    ),
    Mistake(
        "Sequences of a lost engine come back in reverse",
        "batch_manager",
        "self._returned.extendleft(reversed(slices))",
        "self._returned.extendleft(slices)",
        "tests/batch_manager",
    ),
    Mistake(
        "The rate is learnt from small batches",
        "batch_manager",
        "if 2 * num_tokens < max_tokens and newest",
        "if 2 * num_tokens > max_tokens and newest",
        "tests/batch_manager",
    ),
    Mistake(
        "A sequence that does not fit goes into the batch",
        "batch_manager",
        "if taken or (batch.slices and not fits):",
        "if taken:",
        "tests/batch_manager",
    ),
    Mistake(
        "A mean over one token too many",
        "engine/rows",
        "found = rows.sum(axis=0, dtype=np.float64) / len(rows)",
        "found = rows.sum(axis=0, dtype=np.float64) / (len(rows) + 1)",
        "tests/engine/rows tests/engine/cpu",
    ),
    Mistake(
        "Tokens that others must not see are seen",
        "engine/cpu",
        "ATTENTION_MASK: is_seen.astype(np.int64)",
        "ATTENTION_MASK: is_token.astype(np.int64)",
        "tests/engine/cpu",
    ),
    Mistake(
        "Padding has the wrong id",
        "engine/cpu",
        "np.where(is_token, batch.token_ids[index], pad_id)",
        "np.where(is_token, batch.token_ids[index], 5)",
        "tests/engine/cpu/test_engine.py",
    ),
    Mistake(
        "Sliding windows are ignored",
        "engine/transformers",
        "window=sliding_window or query.shape[2],",
        "window=query.shape[2],",
        "tests/engine/transformers/test_attention.py",
    ),
    Mistake(
        "A model's own scaling of attention is ignored",
        "engine/transformers",
        "scaling=query.shape[3] ** -0.5 if scaling is None else scaling,",
        "scaling=query.shape[3] ** -0.5,",
        "tests/engine/transformers/test_attention.py",
    ),
    Mistake(
        "SPLADE sums where it takes the largest",
        "engine/transformers",
        "return rows.sum(dim=0) if self._sums else rows.amax(dim=0)",
        "return rows.sum(dim=0)",
        "tests/engine/transformers/test_heads.py",
    ),
    Mistake(
        "The last token is the next sequence's first",
        "engine/fused",
        'cu_seqlens[1:] - 1 if self.pooling == "last"',
        'cu_seqlens[1:] if self.pooling == "last"',
        "tests/engine/fused/runner tests/engine/fused",
    ),
    Mistake(
        "A kernel takes RMS norms for layer norms",
        "engine/fused",
        '        IS_RMS=norm.kind == "rms",',
        "        IS_RMS=False,",
        "tests/engine/fused/kernels/test_norm.py",
    ),
    Mistake(
        "FP8 scales leave half of the range unused",
        "engine/fused",
        "scales = weight.abs().amax(dim=1) / MAX_FP8",
        "scales = weight.abs().amax(dim=1) / (2 * MAX_FP8)",
        "tests/engine/fused/quantization/test_fp8_row.py",
    ),
    Mistake(
        "The gate lets everything pass",
        "engine/fused",
        "if is_enforced and not passes(of_all):",
        "if is_enforced and passes(of_all):",
        "tests/engine/fused/quantization",
    ),
    Mistake(
        "Positions that RoBERTa loses to its padding are used",
        "engine/model",
        "lost = 0 if padding_idx is None else padding_idx + 1",
        "lost = 0 if padding_idx is None else padding_idx",
        "tests/engine/model tests/parity",
    ),
    Mistake(
        "TensorRT-LLM gets blocks of any size",
        "engine/tensorrt_llm",
        'if config.get("weight_block_size") != [_BLOCK, _BLOCK]:',
        'if config.get("weight_block_size") is None:',
        "tests/engine/tensorrt_llm",
    ),
    Mistake(
        "A key opens whatever follows it",
        "server",
        "if hmac.compare_digest(given, key.digest):",
        "if given:",
        "tests/server/http/test_auth.py tests/server_e2e/edge/test_security.py",
    ),
    Mistake(
        "Web pages of any origin use a server without keys",
        "server",
        "if (is_host_right and (origin is None or self._takes_from(origin))) or is_health(method, path):",
        "if is_host_right or is_health(method, path):",
        "tests/server/http/test_hosts.py",
    ),
    Mistake(
        "A certificate without its key takes the old one's place",
        "server",
        "    except OSError:  # ssl.SSLError is one\n",
        "    except FileNotFoundError:\n",
        "tests/server/http/test_tls.py",
    ),
    Mistake(
        "A key that was taken out of the file stays good",
        "server",
        "self._keys = with_file(file.flag_keys, file.path)",
        "self._keys = [*self._keys, *with_file(file.flag_keys, file.path)]",
        "tests/server/http/test_auth.py",
    ),
    Mistake(
        "One request too many is let in",
        "server",
        "if self._num_requests > self._max_requests:",
        "if self._num_requests > self._max_requests + 1:",
        "tests/server/requests",
    ),
    Mistake(
        "The characters of a text are never learnt",
        "server",
        "(num_tokens / num_characters - old) * _LEARNING_RATE",
        "(num_tokens / num_characters - old) * 0",
        "tests/server/requests",
    ),
    Mistake(
        "The worst document is ranked first",
        "server",
        'return np.argsort(-self.scores, kind="stable")',
        'return np.argsort(self.scores, kind="stable")',
        "tests/server/requests tests/server/dialects",
    ),
    Mistake(
        "A rerank answer has all documents",
        "server",
        "ranked.best_first()[: request.top_n]",
        "ranked.best_first()",
        "tests/server/dialects",
    ),
    Mistake(
        "TEI's single prediction comes in a list",
        "server",
        "items[0] if request.is_single else as_list(items)",
        "as_list(items)",
        "tests/server/dialects",
    ),
    Mistake(
        "Raw rows are big-endian",
        "server",
        'return np.ascontiguousarray(rows, "<f4").reshape(-1)',
        'return np.ascontiguousarray(rows, ">f4").reshape(-1)',
        "tests/server/dialects",
    ),
    Mistake(
        "A file outranks the command line",
        "server",
        "return Settings(models=models, **_of(server, file.values, given))",
        "return Settings(models=models, **_of(server, given, file.values))",
        "tests/server/settings",
    ),
    Mistake(
        "A counter forgets what it had counted",
        "server",
        "sums[labels] = sums.get(labels, 0) + by",
        "sums[labels] = by",
        "tests/server/metrics",
    ),
    Mistake(
        "Buckets of a histogram do not add up",
        "server",
        "        total += count\n        if edge in wanted:",
        "        total = count\n        if edge in wanted:",
        "tests/server/metrics",
    ),
    Mistake(
        "A process is started once more than it should be",
        "server",
        "return self._failures.get(child, 0) >= len(_DELAYS)",
        "return self._failures.get(child, 0) > len(_DELAYS)",
        "tests/server/supervisor",
    ),
    Mistake(
        "The watchdog forgets how many streams an engine has",
        "server",
        "_SLOWER_THAN_PREDICTED * num_tokens * streams / slowest",
        "_SLOWER_THAN_PREDICTED * num_tokens / slowest",
        "tests/server/supervisor",
    ),
    Mistake(
        "An engine that fails in a row goes on drawing work",
        "batch_manager",
        "for engine in trusted or engines if engine.has_room",
        "for engine in engines if engine.has_room",
        "tests/batch_manager/test_sick_engines.py",
    ),
    Mistake(
        "What failed on two engines goes on to a third",
        "batch_manager",
        "if batch.failed_on is not None:\n        return None",
        "if batch.failed_on == engine.engine_id:\n        return None",
        "tests/batch_manager/test_sick_engines.py",
    ),
    Mistake(
        "What a sick engine held is blamed for its restart",
        "batch_manager",
        "computing = [] if was_restarted else engine.computing",
        "computing = engine.computing",
        "tests/batch_manager/test_sick_engines.py",
    ),
    Mistake(
        "Suspects are tried one by one",
        "batch_manager",
        "math.isqrt(count - 1) + 1",
        "1",
        "tests/batch_manager/test_sick_engines.py",
    ),
    Mistake(
        "A group of suspects is refused as one",
        "batch_manager",
        "if batch.is_suspect and batch.num_seqs == 1:",
        "if batch.is_suspect:",
        "tests/batch_manager/test_sick_engines.py",
    ),
    Mistake(
        "A canary that differs passes",
        "engine",
        "if not difference <= self._tolerance:",
        "if difference != difference:",
        "tests/engine/selftest/test_canary.py",
    ),
    Mistake(
        "An input of one model is refused by another",
        "batch_manager",
        'hashlib.blake2b(submission.model.to_bytes(4, "little"), digest_size=16)',
        "hashlib.blake2b(digest_size=16)",
        "tests/batch_manager/test_quarantine.py",
    ),
)


def copy_of_the_tree(folder: Path) -> Path:
    """What git knows of, as it stands here."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (source := ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)
    return folder


def place_of(mistake: Mistake, tree: Path) -> Path | None:
    """The one file of the package that has the right text, where it has it once; else None."""
    found = [(file, file.read_text().count(mistake.right)) for file in (tree / mistake.package).rglob("*.py")]
    places = [(file, count) for file, count in found if count]
    return places[0][0] if len(places) == 1 and places[0][1] == 1 else None


def is_found(tree: Path, *words: str) -> bool:
    """Whether a test of these fails. Nothing is kept from one run to the next."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run([*command, *words], cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1, 2):  # 2: a module of tests could not even be imported
        raise RuntimeError(ended.stdout[-2000:] + ended.stderr[-2000:])
    return ended.returncode != 0


def where_found(tree: Path, mistake: Mistake, *, is_all: bool) -> str:
    """The first of the groups of tests that finds it, or ""."""
    near = [path for path in mistake.near.split() if (tree / path).exists()]
    if is_found(tree, "--tier=default", *near):
        return "near"
    side_by_side = ("-n", "2", "--dist", "worksteal")
    if is_all and is_found(tree, "--tier=default", *side_by_side):
        return "default tier"
    return "full tier" if is_all and is_found(tree, "--tier=rest", *side_by_side) else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    chosen = [mistake for mistake in MISTAKES if mistake.name.startswith(asked.only)]
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of_the_tree(Path(folder))
        for mistake in chosen:
            began = time.monotonic()
            if (file := place_of(mistake, tree)) is None:
                verdict = "not planted: its text does not stand there exactly once"
            else:
                right = file.read_text()
                file.write_text(right.replace(mistake.right, mistake.wrong))
                verdict = where_found(tree, mistake, is_all=asked.all) or "NOT FOUND"
                file.write_text(right)
            if verdict.isupper() or verdict.startswith("not"):
                missed.append(mistake.name)
            print(f"{time.monotonic() - began:6.0f} s  {mistake.name}: {verdict}", flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} mistakes were found")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
