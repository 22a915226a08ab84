"""Weights that are let go of once a module has them."""

from collections.abc import ItemsView, Iterable, Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file


class ConsumableWeightsDict:
    def __init__(self, weights: dict[str, Any]) -> None:
        self._weights = weights

    def __getitem__(self, key: str) -> Any:
        return self._weights[key]

    def __contains__(self, key: str) -> bool:
        return key in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def keys(self) -> Iterable[str]:
        return self._weights.keys()

    def items(self) -> ItemsView[str, Any]:
        return self._weights.items()

    def mark_consumed(self, prefix: str) -> int:
        return self.mark_consumed_keys([name for name in self._weights if name.startswith(f"{prefix}.")])

    def mark_consumed_keys(self, keys: Iterable[str]) -> int:
        return sum(self._weights.pop(key, None) is not None for key in list(keys))


def load_weights(checkpoint_dir: str) -> ConsumableWeightsDict:
    """Every safetensors file, whatever an index says."""
    weights: dict[str, Any] = {}
    for file in sorted(Path(checkpoint_dir).glob("*.safetensors")):
        if "consolidated" not in file.name:
            weights |= load_file(file)
    if not weights:
        raise RuntimeError(f"No weight files found in {checkpoint_dir}.")
    return ConsumableWeightsDict(weights)
