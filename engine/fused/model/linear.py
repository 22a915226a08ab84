"""Products of rows with weights, plain or in FP8.

In FP8 each row of activations and each row of a weight has a scale: there is nothing to calibrate, and a row's scale is
its own, so no sequence changes another's rows. On a GPU the product is torch._scaled_mm's, whose formats are in
https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_mm.html (row-wise scaling).

cuBLAS has no kernel with scales by row for some sizes, though one for the product itself: seen on Hopper with up to 256
rows of 9,216 numbers (https://github.com/pytorch/ao/issues/4582), and on sm_120 with any. There the product is scaled
afterwards, which is slower. No table of GPUs says which sizes these are, so they are tried at load (`probe_products`).

Shapes: T rows, K numbers a row, N numbers a product.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional

from engine.fused.model.ops import QuantizedRows, Rows
from engine.fused.model.spec import Spec, linear_shapes
from engine.machine.failures import engine_error, one_line
from engine.types import EngineErrorKind, ModelError

MAX_FP8 = 448.0  # the largest float8_e4m3fn
FP8_MULTIPLE = 16  # of K, N and the bounds of parts, as torch._scaled_mm wants it
_OF_THE_DEVICE = (torch.OutOfMemoryError, torch.AcceleratorError)  # RuntimeErrors that name no missing kernel

logger = logging.getLogger("embedline.engine")


class ProductSize(NamedTuple):
    """The size of one product."""

    num_rows: int  # T
    n: int
    k: int


# Sizes that this process's GPU (it has one) has no kernel for with scales by row. Filled at load, and by a size that
# comes for the first time later.
without_kernel: set[ProductSize] = set()


class Linear(Protocol):
    """rows @ weight.T + bias."""

    @property
    def is_quantized(self) -> bool:
        """Whether it takes `QuantizedRows`; otherwise a plain tensor."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that it consists of, for a file."""

    def __call__(self, rows: Rows) -> Tensor:
        """[T, N] in the model's compute dtype."""

    def part(self, start: int, end: int) -> "Linear":
        """The one that gives columns start … end - 1 of the product; shares the weights."""


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """See Linear. In the compute dtype."""

    is_quantized: ClassVar[bool] = False
    weight: Tensor  # [N, K]
    bias: Tensor | None  # [N]

    @property
    def tensors(self) -> dict[str, Tensor]:
        return _present(weight=self.weight, bias=self.bias)

    def __call__(self, rows: Rows) -> Tensor:
        assert isinstance(rows, Tensor)
        return functional.linear(rows, self.weight, self.bias)

    @property
    def can_gelu(self) -> bool:
        """Whether `gelu` is one kernel here: on a GPU, of 16-bit numbers with a bias."""
        return self.weight.is_cuda and self.weight.dtype.itemsize == 2 and self.bias is not None

    def gelu(self, rows: Tensor) -> Tensor:
        """The product's GELU in the form with tanh, in the product's own kernel. On an H100 product and activation take
        1.3 (bge-m3) to 1.8 (MiniLM) times as long in two. Rounded once, it is nearer to exact GELU than two kernels
        that round in between: errors of 0.0017 and 0.0024, in bfloat16."""
        assert self.bias is not None
        return torch._addmm_activation(self.bias, rows, self.weight.t(), use_gelu=True)

    def part(self, start: int, end: int) -> "PlainLinear":
        return PlainLinear(self.weight[start:end], _part(self.bias, start, end))


@dataclass(frozen=True, slots=True)
class Fp8Linear:
    """See Linear. In FP8, with a scale for each row. Bounds of parts are multiples of FP8_MULTIPLE."""

    is_quantized: ClassVar[bool] = True
    weight: Tensor  # float8_e4m3fn [N, K]
    scales: Tensor  # float32 [1, N]
    bias: Tensor | None  # [N]
    dtype: torch.dtype  # of the product

    @classmethod
    def of(cls, linear: PlainLinear) -> Self:
        """The layer, quantized; keeps nothing of the weight it is given. Raises ValueError where sizes do not fit."""
        weight = linear.weight.float()
        scales = weight.abs().amax(dim=1) / MAX_FP8
        scales = torch.where(scales == 0, 1.0, scales)
        values = (weight / scales[:, None]).clamp(-MAX_FP8, MAX_FP8).to(torch.float8_e4m3fn)
        return cls(values, scales[None], linear.bias, linear.weight.dtype)._checked()

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], *, dtype: torch.dtype) -> Self:
        """The inverse of `tensors`; `dtype` is the compute dtype. Raises ValueError where they are something else."""
        if not {"weight", "scales"} <= set(tensors) <= {"weight", "scales", "bias"}:
            raise ValueError("not the tensors of a row-wise FP8 layer")
        return cls(tensors["weight"], tensors["scales"], tensors.get("bias"), dtype)._checked()

    @property
    def tensors(self) -> dict[str, Tensor]:
        return _present(weight=self.weight, scales=self.scales, bias=self.bias)

    def __call__(self, rows: Rows) -> Tensor:
        assert isinstance(rows, QuantizedRows)
        size = ProductSize(len(rows.values), *self.weight.shape)
        if size in without_kernel:
            return self.scaled_afterwards(rows).to(self.dtype)
        try:
            return self.scaled_by_row(rows).to(self.dtype)
        except _OF_THE_DEVICE:
            raise
        except RuntimeError as error:  # whatever it says: if the device is at fault, the other way fails too
            if engine_error(error).kind is EngineErrorKind.OUT_OF_MEMORY:  # cuBLAS has words of its own for it
                raise
            reason = one_line(error)
        product = self.scaled_afterwards(rows).to(self.dtype)
        is_news = all((known.n, known.k) != (size.n, size.k) for known in without_kernel)
        without_kernel.add(size)
        if is_news:
            logger.warning(
                "no row-wise FP8 kernel for %d rows, N %d, K %d: scaled afterwards, which is slower (%s)", *size, reason
            )
        return product

    def part(self, start: int, end: int) -> "Fp8Linear":
        assert start % FP8_MULTIPLE == end % FP8_MULTIPLE == 0
        return Fp8Linear(self.weight[start:end], self.scales[:, start:end], _part(self.bias, start, end), self.dtype)

    def scaled_by_row(self, rows: QuantizedRows) -> Tensor:
        """[T, N], by the kernel that scales as it multiplies. Raises RuntimeError where there is none."""
        # On CUDA scaled by rows there is no product but bfloat16; on a CPU there is any.
        dtype = torch.bfloat16 if self.weight.is_cuda else self.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        return scaled_mm(
            rows.values, self.weight.t(), scale_a=rows.scales, scale_b=self.scales, bias=bias, out_dtype=dtype
        )

    def scaled_afterwards(self, rows: QuantizedRows) -> Tensor:
        """float32 [T, N]: the product of numbers as they are stored, then scales and bias."""
        one = self.scales.new_ones(())
        product = scaled_mm(rows.values, self.weight.t(), scale_a=one, scale_b=one, out_dtype=torch.float32)
        product *= rows.scales
        product *= self.scales
        if self.bias is not None:
            product += self.bias
        return product

    def _checked(self) -> Self:
        """The layer itself. Raises ValueError if its shapes don't fit."""
        weight, scales, bias = self.weight, self.scales, self.bias
        if weight.dim() != 2 or any(size == 0 or size % FP8_MULTIPLE for size in weight.shape):
            raise ValueError(f"the sizes of a weight {list(weight.shape)} are not multiples of {FP8_MULTIPLE}")
        if (weight.dtype, scales.dtype) != (torch.float8_e4m3fn, torch.float32) or scales.shape != (1, len(weight)):
            raise ValueError(f"scales of {list(scales.shape)} do not fit a weight of {list(weight.shape)}")
        if bias is not None and bias.shape != (len(weight),):
            raise ValueError(f"a bias of {list(bias.shape)} does not fit a weight of {list(weight.shape)}")
        return self


def scaled_mm(
    rows: Tensor,
    weight: Tensor,
    *,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """[T, N] of rows [T, K] and a weight [K, N]: torch._scaled_mm's.

    On a CPU by a plain product: in torch 2.11 its own takes no scales by row.
    """
    if rows.device.type == "cpu":
        product = (rows.float() * scale_a) @ (weight.float() * scale_b)
        return (product if bias is None else product + bias).to(out_dtype)
    return torch._scaled_mm(
        rows, weight, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=out_dtype, use_fast_accum=True
    )


def _part(bias: Tensor | None, start: int, end: int) -> Tensor | None:
    return None if bias is None else bias[start:end]


def _present(**tensors: Tensor | None) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


Products = Mapping[str, tuple[int, int]]  # by name: N and K


class NoProduct(ModelError):
    """The GPU computes an FP8 product in neither way."""


def products_of(spec: Spec, names: Iterable[str]) -> Products:
    """The products that these linear layers compute. The last layer of a pruned model computes `qkv` in two parts."""
    kinds = {name.rpartition(".")[2] for name in names}
    products = {kind: size for kind, size in linear_shapes(spec).items() if kind in kinds}
    if "qkv" in products:
        products |= {"q": (spec.q_size, spec.hidden_size), "kv": (2 * spec.kv_size, spec.hidden_size)}
    return products


def probe_products(products: Products, *, row_counts: Sequence[int], device: torch.device, dtype: torch.dtype) -> None:
    """Compute each product with each number of rows, ascending, and keep in mind which have no row-wise kernel.

    Sizes that find no memory are left out: batches of that size find none either. Raises NoProduct, and
    torch.AcceleratorError where the device is lost.
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
    """Raises NoProduct, torch.OutOfMemoryError and torch.AcceleratorError."""
    failures = []
    for product in (linear.scaled_by_row, linear.scaled_afterwards):
        try:
            product(rows)
            break
        except _OF_THE_DEVICE:
            raise
        except RuntimeError as error:  # whatever it says: what counts is whether the other way works
            failures.append(one_line(error))
    size = ProductSize(len(rows.values), *linear.weight.shape)
    if len(failures) > 1:
        raise NoProduct(
            f"there is no FP8 product for {name} (N {size.n}, K {size.k}) with {size.num_rows} rows on this device: "
            f"{failures[-1]}; --quantization none serves the model"
        )
    if failures:
        without_kernel.add(size)


def fallbacks(products: Products) -> dict[str, tuple[int, ...]]:
    """The numbers of rows with which each product is scaled afterwards, as far as it is known; no others' names."""
    found = {
        name: tuple(sorted(size.num_rows for size in without_kernel if (size.n, size.k) == n_and_k))
        for name, n_and_k in products.items()
    }
    return {name: counts for name, counts in found.items() if counts}


def note_of_fallbacks(found: Mapping[str, Sequence[int]]) -> str:
    """A line for the log and for /info."""
    said = (f"{name} with {', '.join(map(str, counts))} rows" for name, counts in found.items())
    return f"no FP8 kernel with scales by row on this device, so scaled afterwards, which is slower: {'; '.join(said)}"
