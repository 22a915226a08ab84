"""Chooses a model's devices from `--devices`. Does not ask the driver.

`GENERATIONS` is the only list of the dtypes that each GPU generation computes in.
"""

from dataclasses import dataclass

from engine.machine.cuda_driver import Cuda, Gpu
from engine.registry import AUTO, CPU, CUDA, ENGINES, FAKE, FUSED, EngineRow
from engine.types import ModelError

_DTYPES_OF_FUSED = {CPU: ("auto", "float32", "bfloat16"), CUDA: ("auto", "bfloat16", "float16")}

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Generation:
    """GPUs from this compute capability up to the next generation's."""

    capability: Capability
    name: str
    examples: str
    has_bfloat16: bool
    has_fp8: bool  # whether it multiplies float8_e4m3fn matrices with a scale for each row


GENERATIONS = (
    Generation((7, 0), "Volta", "V100", has_bfloat16=False, has_fp8=False),
    Generation((7, 5), "Turing", "T4, RTX 20", has_bfloat16=False, has_fp8=False),
    Generation((8, 0), "Ampere", "A100, A30", has_bfloat16=True, has_fp8=False),
    Generation((8, 6), "Ampere", "A10, A40, RTX 30", has_bfloat16=True, has_fp8=False),
    Generation((8, 9), "Ada", "L4, L40S, RTX 40", has_bfloat16=True, has_fp8=True),
    Generation((9, 0), "Hopper", "H100, H200", has_bfloat16=True, has_fp8=True),
    Generation((10, 0), "Blackwell", "B200", has_bfloat16=True, has_fp8=True),
    Generation((10, 3), "Blackwell", "B300", has_bfloat16=True, has_fp8=True),
    Generation((12, 0), "Blackwell", "RTX PRO 6000, RTX 50", has_bfloat16=True, has_fp8=True),
)
_BFLOAT16_FROM: Capability = min(one.capability for one in GENERATIONS if one.has_bfloat16)
_FP8_FROM: Capability = min(one.capability for one in GENERATIONS if one.has_fp8)


def has_bfloat16(capability: Capability) -> bool:
    """Whether a GPU of this compute capability multiplies matrices of bfloat16."""
    return capability >= _BFLOAT16_FROM


def has_fp8(capability: Capability) -> bool:
    """Whether a GPU of this compute capability multiplies matrices of float8_e4m3fn."""
    return capability >= _FP8_FROM


def dtype_of_auto(capability: Capability | None) -> str:
    """The dtype of `--dtype auto` on a GPU of this compute capability, or on the CPU (None).

    It is never float16, because some models' numbers are too large for it. On the CPU it is float32: CPUs without
    bfloat16 arithmetic are 6 to 10 times slower in bfloat16. The openvino engine decides for itself (engine.cpu).
    """
    return "bfloat16" if capability is not None and has_bfloat16(capability) else "float32"


def check_dtype_of_fused(dtype: str, kind: str) -> None:
    """Raises ModelError if the fused engine does not compute in the dtype on this kind of device."""
    dtypes = _DTYPES_OF_FUSED[kind]
    if dtype not in dtypes:
        place = "a CPU" if kind == CPU else "a GPU"
        raise ModelError(
            f"--dtype {dtype} is not for the fused engine on {place}, which has {', '.join(dtypes)}; "
            f"--engine transformers computes in it"
        )


def kind_of(device: str) -> str:
    """The kind of a device: "cpu" or "cuda". The fake engine takes any name before a colon."""
    return device.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a model."""

    names: tuple[str, ...]  # one engine process each: "cpu", "cuda:0", …
    reason: str  # why these were chosen
    gpus: tuple[Gpu, ...] = ()  # the same, if they are GPUs

    @property
    def kind(self) -> str:
        """The kind of all of them."""
        return kind_of(self.names[0])


@dataclass(frozen=True, slots=True)
class Work:
    """The options that devices must support."""

    engine: str  # a name of engine.registry, or auto
    dtype: str
    quantization: str

    @property
    def row(self) -> EngineRow | None:
        """The engine's row; None for auto."""
        return ENGINES.get(self.engine)

    @property
    def is_for_a_cpu(self) -> bool:
        """Whether only engines for CPUs support this."""
        return (self.row is not None and self.row.kinds == (CPU,)) or self.quantization == "int8"

    @property
    def is_for_a_gpu(self) -> bool:
        """Whether only GPUs are fast enough for this. A CPU then needs --devices cpu, for checks."""
        return (self.row is not None and self.row.kinds == (CUDA,)) or self.quantization == "fp8"

    @property
    def has_nothing_for_a_cpu(self) -> bool:
        """Whether the engine can't run on a CPU at all, not even for checks."""
        return self.row is not None and CPU not in self.row.kinds and not self.row.checks_on_cpu

    @property
    def needs_bfloat16(self) -> bool:
        """Whether a GPU must have bfloat16."""
        return self.row is None or self.row.needs_bfloat16 or self.dtype == "bfloat16"


def needs_driver(asked: str, work: Work) -> bool:
    """Whether `choose` needs the list of GPUs. The driver takes a while to give it."""
    if work.engine == FAKE or (asked == AUTO and work.is_for_a_cpu):
        return False
    return any(name != CPU for name in _names(asked))


def choose(asked: str, work: Work, cuda: Cuda) -> Devices:
    """`asked` is "auto", "cpu", "cuda" (all GPUs), "cuda:1", or several of them separated by commas. Raises ModelError
    with one line if a device is missing or does not support the options."""
    names = _names(asked)
    if asked == AUTO:
        return _auto(work, cuda)
    if work.engine == FAKE:
        return Devices(names, f"--devices {asked}")
    if set(names) == {CPU}:
        if work.has_nothing_for_a_cpu:
            raise ModelError(f"--engine {work.engine} needs an NVIDIA GPU; --engine auto can serve on a CPU")
        _check_dtype(work, CPU)
        return Devices(names, f"--devices {asked}")
    gpus = tuple(gpu for name in names for gpu in _gpus(name, cuda, instead=_on_the_cpu(work)))
    for gpu in gpus:
        _check(gpu, work)
    return Devices(tuple(gpu.device for gpu in gpus), f"--devices {asked}: {'; '.join(map(str, gpus))}", gpus)


def _names(asked: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in asked.split(","))


def _auto(work: Work, cuda: Cuda) -> Devices:
    """The first GPU that supports the options, or else the CPU."""
    why = f"--devices {AUTO}"
    if work.engine == FAKE:
        return Devices((CPU,), f"{why}: the fake engine uses no device")
    if work.is_for_a_cpu:
        return Devices((CPU,), f"{why}: what is asked for is for a CPU")
    reasons = [_why_not(gpu, work, needs_bfloat16=True) for gpu in cuda.gpus]
    for gpu, reason in zip(cuda.gpus, reasons, strict=True):
        if not reason:
            _check_dtype(work, CUDA)
            return Devices((gpu.device,), f"{why}: {gpu}", (gpu,))
    why_none = "; ".join(reasons) or cuda.why_none
    if work.is_for_a_gpu:
        newest = max(cuda.gpus, key=lambda gpu: gpu.capability, default=None)
        raise ModelError(
            f"{why}: no GPU for --engine {work.engine} --quantization {work.quantization}: {why_none}"
            f"{_on_the_cpu(work) if newest is None else _instead(newest, work)}"
        )
    return Devices((CPU,), f"{why}: {why_none}")


def _gpus(name: str, cuda: Cuda, *, instead: str) -> tuple[Gpu, ...]:
    """The GPUs of one name. `instead` ends the message if there is no GPU at all."""
    kind, separator, index = name.partition(":")
    if name in (CPU, AUTO):
        raise ModelError(
            f"--devices: {name} can't be combined with other devices: all engines of a model must give the same rows"
        )
    if kind != CUDA or (separator and not (index.isascii() and index.isdecimal())):
        raise ModelError("--devices takes auto, cpu, cuda, or GPUs by number such as cuda:0,cuda:1")
    if not cuda.gpus:
        raise ModelError(f"--devices {name}: {cuda.why_none}{instead}")
    if not separator:
        return cuda.gpus
    if int(index) >= len(cuda.gpus):
        raise ModelError(f"--devices {name}: there is no such GPU, only {', '.join(gpu.device for gpu in cuda.gpus)}")
    return (cuda.gpus[int(index)],)


def _check(gpu: Gpu, work: Work) -> None:
    if work.row is not None and work.row.kinds == (CPU,):
        raise ModelError(f"--devices {gpu.device}: --engine {work.engine} is for a CPU; fused and transformers are not")
    if work.quantization == "int8":
        raise ModelError(f"--devices {gpu.device}: --quantization int8 is for a CPU; fp8 is for GPUs that have it")
    reason = _why_not(gpu, work, needs_bfloat16=work.needs_bfloat16)
    if reason:
        raise ModelError(f"--devices: {reason}{_instead(gpu, work)}")
    _check_dtype(work, CUDA)


def _check_dtype(work: Work, kind: str) -> None:
    """Check the dtype if only the fused engine supports the quantization. Otherwise auto finds another engine."""
    if work.is_for_a_gpu and work.engine in (AUTO, FUSED):
        check_dtype_of_fused(work.dtype, kind)


def _why_not(gpu: Gpu, work: Work, *, needs_bfloat16: bool) -> str:
    """Why a GPU does not support the options; "" if it does."""
    if needs_bfloat16 and not has_bfloat16(gpu.capability):
        return f"{gpu} has no bfloat16, which begins at {_dotted(_BFLOAT16_FROM)}"
    if work.quantization == "fp8" and not has_fp8(gpu.capability):
        return f"{gpu} has no FP8, which begins at {_dotted(_FP8_FROM)}"
    return ""


def _instead(gpu: Gpu, work: Work) -> str:
    """The end of a message: options that this GPU supports."""
    if has_bfloat16(gpu.capability):
        return "; --quantization none computes in bfloat16 there"
    plain = " --quantization none" if work.quantization == "fp8" else ""
    return f"; --engine transformers{plain} with --dtype float32 or float16 runs there (--devices {gpu.device})"


def _on_the_cpu(work: Work) -> str:
    """The end of a message: how to serve without a GPU."""
    gpus = "; docker run --gpus all gives a container those that there are"
    if work.has_nothing_for_a_cpu:  # its image has no engine for a CPU
        return f"{gpus}; the cpu image serves most models without, as --devices cpu --engine auto does elsewhere"
    engine = " --engine auto" if work.engine == FUSED else ""
    plain = " --quantization none" if work.quantization == "fp8" else ""
    slow = "; --engine fused --devices cpu is slow, for checks" if work.is_for_a_gpu else ""
    return f"{gpus}; --devices cpu{engine}{plain} serves most models, by openvino or transformers{slow}"


def _dotted(capability: Capability) -> str:
    return ".".join(map(str, capability))
