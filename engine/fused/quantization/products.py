"""Tries at load, by computing them, which FP8 products a GPU has kernels for. No table of GPUs says it.

Shapes: T rows, K numbers a row, N numbers a product.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch

from engine.fused.model.linear import Fp8Linear, ProductSize, without_kernel
from engine.fused.model.ops import QuantizedRows
from engine.fused.model.spec import Spec
from engine.machine.failures import one_line
from engine.types import ModelError

Products = Mapping[str, tuple[int, int]]  # by name: N and K


def products_of(spec: Spec, names: Iterable[str]) -> Products:
    """What these linear layers compute. The last layer of a pruned model computes `qkv` in two parts."""
    kinds = {name.rpartition(".")[2] for name in names}
    queries, keys_values = spec.num_heads * spec.head_dim, 2 * spec.num_kv_heads * spec.head_dim
    hidden, intermediate = spec.hidden_size, spec.intermediate_size
    products = {
        "qkv": (queries + keys_values, hidden),
        "q": (queries, hidden),
        "kv": (keys_values, hidden),
        "o": (hidden, queries),
        "gate_up": ((2 if spec.is_gated else 1) * intermediate, hidden),
        "down": (hidden, intermediate),
    }
    return {name: size for name, size in products.items() if ("qkv" if name in ("q", "kv") else name) in kinds}


def probe(products: Products, *, row_counts: Sequence[int], device: torch.device, dtype: torch.dtype) -> None:
    """Compute each product with each number of rows, ascending, and keep in mind which have no row-wise kernel.

    Sizes that find no memory are left out: batches of that size find none either. Raises ModelError where a product
    can't be computed either way.
    """
    for name, (n, k) in products.items():
        weight = torch.zeros(n, k, dtype=torch.float8_e4m3fn, device=device)
        linear = Fp8Linear(weight, torch.ones(1, n, device=device), None, dtype)
        for num_rows in row_counts:
            values = torch.zeros(num_rows, k, dtype=torch.float8_e4m3fn, device=device)
            try:
                _try(name, linear, QuantizedRows(values, torch.ones(num_rows, 1, device=device)))
            except torch.OutOfMemoryError:
                break


def _try(name: str, linear: Fp8Linear, rows: QuantizedRows) -> None:
    """Raises ModelError, torch.OutOfMemoryError, and torch.AcceleratorError where the device is lost."""
    try:
        linear.scaled_by_row(rows)
        return
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except RuntimeError:  # whatever it says: what counts is whether the other way works
        pass
    size = ProductSize(len(rows.values), *linear.weight.shape)
    try:
        linear.scaled_afterwards(rows)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except RuntimeError as error:
        raise ModelError(
            f"there is no FP8 product for {name} (N {size.n}, K {size.k}) with {size.num_rows} rows on this device: "
            f"{one_line(error)}; --quantization none serves the model"
        ) from error
    without_kernel.add(size)


def fallbacks(products: Products) -> dict[str, tuple[int, ...]]:
    """The numbers of rows with which each product is scaled afterwards, as far as it is known; no others' names."""
    found = {
        name: tuple(sorted(size.num_rows for size in without_kernel if (size.n, size.k) == n_and_k))
        for name, n_and_k in products.items()
    }
    return {name: counts for name, counts in found.items() if counts}


def note(found: Mapping[str, Sequence[int]]) -> str:
    """A line for the log and for /info, of what `fallbacks` found."""
    said = (f"{name} with {', '.join(map(str, counts))} rows" for name, counts in found.items())
    return f"no FP8 kernel with scales by row on this device, so scaled afterwards, which is slower: {'; '.join(said)}"
