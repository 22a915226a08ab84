"""Which GPU a kept model is for, and where compiled kernels go: what can be tried without one."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from engine.fused import loading, offer
from engine.fused.offer import FusedConfig
from engine.fused.quantization import cache
from engine.fused.quantization.cache import cache_for
from engine.fused.start import Phases
from engine.messages import LoadOptions
from engine.store import fingerprint
from tests.engine.engines import load_options
from tests.engine.tiny_models import save


def options(folder: Path, cache_dir: Path | None) -> LoadOptions:
    return load_options(folder, quantization="fp8", cache_dir=None if cache_dir is None else str(cache_dir))


def on_gpu(chosen: FusedConfig, capability: tuple[int, int] = (9, 0)) -> FusedConfig:
    return dataclasses.replace(chosen, capability=capability)


def test_each_kind_of_gpu_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = offer.choose(options(save("bert", tmp_path), None))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    keys = [cache._key(one, "fp8") for one in (chosen, on_gpu(chosen), on_gpu(chosen, (8, 9)))]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    keys.append(cache._key(on_gpu(chosen), "fp8"))
    assert len(set(keys)) == 4
    assert cache._key(on_gpu(chosen), "fp8") == keys[-1]


def test_texts_in_lower_case_are_other_texts(tmp_path: Path) -> None:
    chosen = offer.choose(options(save("bert", tmp_path), None))
    folder = dataclasses.replace(chosen.folder, do_lower_case=True)
    assert cache._key(dataclasses.replace(chosen, folder=folder), "fp8") != cache._key(chosen, "fp8")


def test_a_file_that_can_not_be_read_is_the_readers_affair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object, **__: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    given = options(save("bert", tmp_path / "model"), tmp_path / "cache")
    monkeypatch.setattr(fingerprint, "key", unreadable)
    assert cache_for(offer.choose(given), given) is None


class Reached(Exception):
    """The call that was waited for."""


@pytest.mark.parametrize(("is_gpu", "has_folder"), [(True, True), (True, False), (False, True)])
def test_kernels_are_kept_where_there_are_any(
    is_gpu: bool, has_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Path] = []
    choose: Callable[[LoadOptions], FusedConfig] = offer.choose

    def stop(*_: object, **__: object) -> NoReturn:
        raise Reached

    monkeypatch.setattr(offer, "choose", lambda given: on_gpu(choose(given)) if is_gpu else choose(given))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(loading, "cache_for", stop)
    monkeypatch.setattr(
        loading,
        "keep_kernels",
        lambda folder, environment: used.append(folder) if environment is os.environ else None,
    )
    given = options(save("bert", tmp_path / "model"), tmp_path / "cache" if has_folder else None)
    with pytest.raises(Reached):
        loading.load(Phases(), name="m", reason="", options=given)
    assert used == ([tmp_path / "cache"] if is_gpu and has_folder else [])
