"""From how many tokens on a lone text is computed on all cores, and that they are compiled for nothing only once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.cpu import all_cores, loading, openvino
from engine.types import compute
from tests.engine.cpu.engines import load, pooled, rows_of
from tests.engine.cpu.test_engine import Plain, engine, of_lengths
from tests.engine.tiny_models import arbitrary, batch, save


@pytest.mark.parametrize(
    ("on_one", "on_all", "cores", "max_seqlen", "expected"),
    [
        ((1.25, 9.0), (1.0, 9.0), (1.0, 2.0), 512, 1),
        ((1.24, 5.0), (1.0, 4.0), (1.0, 2.0), 512, 64),
        ((1.24, 4.9), (1.0, 4.0), (1.0, 2.0), 512, 0),
        ((1.24, 5.0), (1.0, 4.0), (1.0, 2.0), 63, 0),
        ((2.00, 9.0), (1.0, 1.0), (0.8, 2.0), 512, None),
        ((1.24, 9.0), (1.0, 9.0), (1.0, 1.4), 512, None),
    ],
    ids=["short", "longer", "none", "not of this model", "a busy core", "another busy core"],
)
def test_all_cores_are_for_texts_for_which_they_are_faster(
    on_one: tuple[float, float],
    on_all: tuple[float, float],
    cores: tuple[float, float],
    max_seqlen: int,
    expected: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def quickest(*arguments: Any) -> list[tuple[float, float]]:
        number = (16, 64).index(arguments[-1])
        return [(on_one[number], cores[0]), (on_all[number], cores[1])]

    monkeypatch.setattr(all_cores, "_quickest", quickest)
    assert all_cores.least_tokens(Plain().executor(), max_seqlen=max_seqlen) == expected


def test_what_was_disturbed_is_tried_again_and_the_quickest_of_all_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    on_all = iter((1.4, 1.3, 1.0))  # seconds

    def quickest(*arguments: Any) -> list[tuple[float, float]]:
        return [(1.5, 1.0), (next(on_all), 2.0)]

    monkeypatch.setattr(all_cores, "_quickest", quickest)
    assert all_cores.least_tokens(Plain().executor(), max_seqlen=512) == 1
    assert not list(on_all)


def test_each_way_is_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Plain()
    executor = plain.executor()
    assert executor.wide is not None
    found = list(all_cores._quickest(executor.streams[0], executor.wide, executor.input_names, 7))
    assert plain.calls == ["stream", "wide"] * (len(plain.calls) // 2)
    assert set(plain.shapes) == {(1, 7)}
    assert all(seconds > 0 for seconds, _ in found)


def test_what_gains_nothing_is_compiled_once_and_never_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = save("bert", tmp_path / "model"), str(tmp_path / "cache")
    opened, tried = list[bool](), list[int]()
    open_model = openvino.open_model

    def seen(*arguments: Any, **named: Any) -> openvino.Executor:
        executor = open_model(*arguments, **named)
        opened.append(executor.wide is not None)
        return executor

    def measured(executor: openvino.Executor, *, max_seqlen: int) -> int:
        tried.append(max_seqlen)
        return 0

    monkeypatch.setattr(openvino, "open_model", seen)
    monkeypatch.setattr(loading, "least_tokens", measured)
    for num_threads in (2, 2, 3):
        loaded = load(folder, cache_dir=cache, num_threads=num_threads)
        assert loaded._executor.wide is None
        loaded.close()
    assert opened == [True, False, True]  # with other threads it may be another matter
    assert len(tried) == 2


@pytest.mark.parametrize(("num_threads", "num_streams"), [(1, 1), (2, 1), (7, 1), (8, 2)])
def test_a_large_model_is_compiled_once_and_its_streams_have_several_cores(
    num_threads: int, num_streams: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache, texts = save("bert", tmp_path / "model"), str(tmp_path / "cache"), arbitrary((5, 70, 9, 30))
    expected = rows_of(folder, texts)
    monkeypatch.setattr(openvino, "_MAX_WIDE_BYTES", 0)
    for _ in ("a first start", "a later start"):
        loaded = load(folder, cache_dir=cache, num_threads=num_threads)
        assert (len(loaded._executor.streams), loaded._executor.wide) == (num_streams, None)
        np.testing.assert_allclose(pooled(loaded, texts), expected, atol=1e-5)
        np.testing.assert_allclose(pooled(loaded, texts[1:2]), expected[1:2], atol=1e-5)
        loaded.close()


def test_a_shorter_one_is_computed_at_once_on_one_core_if_it_takes_a_moment() -> None:
    plain = Plain()
    with engine(plain, least_wide=64) as loaded:
        for seqlen in (63, 64):
            assert loaded.compute_alone(batch(of_lengths(seqlen))) is not None
        assert plain.calls == ["stream", "wide"]
        loaded._speed.observe(8, 1.0)
        assert loaded.compute_alone(batch(of_lengths(63))) is None, "others could have the other cores"
        compute(loaded, batch(of_lengths(63)))
        assert plain.calls[2:] == ["stream"]
