"""What `--devices` means beside which GPUs, and what is refused."""

import pytest

from engine.machine import devices
from engine.machine.cuda_driver import Cuda, Gpu
from engine.machine.devices import GENERATIONS, Devices, Work, dtype_of_auto, has_bfloat16, has_fp8
from tests.engine import engines

pytestmark = pytest.mark.holds("Engines on a GPU")

GIB = 1 << 30


def cuda(*capabilities: tuple[int, int]) -> Cuda:
    return Cuda(tuple(Gpu(index, "GPU", capability, 80 * GIB) for index, capability in enumerate(capabilities)))


CPU_INSTEAD = (
    "; docker run --gpus all gives a container those that there are"
    "; --devices cpu serves most models, by openvino or transformers"
)
NONE = Cuda(why_none="there is no CUDA driver here")
HOPPER, ADA, AMPERE, TURING = (9, 0), (8, 9), (8, 0), (7, 5)


def work(engine: str = "auto", dtype: str = "auto", quantization: str = "auto") -> Work:
    return Work(engine, dtype, quantization)


def choose(asked: str, what: Work, found: Cuda) -> Devices:
    """As a server does: the driver is asked only where it matters."""
    return devices.choose(asked, what, found if devices.needs_driver(asked, what) else Cuda())


def refusal(asked: str, what: Work, found: Cuda) -> str:
    return engines.refusal(lambda: choose(asked, what, found))


@pytest.mark.parametrize(
    ("asked", "found", "names"),
    [
        ("auto", NONE, ["cpu"]),
        ("auto", cuda(HOPPER, HOPPER), ["cuda:0"]),
        ("auto", cuda(TURING, AMPERE), ["cuda:1"]),
        ("auto", cuda(TURING), ["cpu"]),
        ("cpu", cuda(HOPPER), ["cpu"]),
        ("cpu,cpu", cuda(HOPPER), ["cpu", "cpu"]),
        ("cuda", cuda(HOPPER, AMPERE), ["cuda:0", "cuda:1"]),
        ("cuda:1", cuda(HOPPER, AMPERE), ["cuda:1"]),
        ("cuda:2, cuda:0", cuda(HOPPER, TURING, AMPERE), ["cuda:2", "cuda:0"]),
    ],
)
def test_which_devices(asked: str, found: Cuda, names: list[str]) -> None:
    chosen = choose(asked, work(), found)
    assert list(chosen.names) == names
    assert chosen.reason.startswith(f"--devices {asked}")
    assert [gpu.device for gpu in chosen.gpus] == [name for name in names if name != "cpu"]
    assert chosen.kind == names[0].partition(":")[0]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (cuda(HOPPER), "cuda:0 (GPU, compute capability 9.0)"),
        (NONE, "there is no CUDA driver here"),
        (cuda(TURING), "cuda:0 (GPU, compute capability 7.5) has no bfloat16, which begins at 8.0"),
    ],
)
def test_auto_says_why(found: Cuda, words: str) -> None:
    assert choose("auto", work(), found).reason == f"--devices auto: {words}"


@pytest.mark.parametrize("what", [work("openvino"), work(quantization="int8"), work("fake")])
def test_auto_is_the_cpu_for_what_only_cpus_do(what: Work) -> None:
    assert not devices.needs_driver("auto", what)
    assert choose("auto", what, cuda(HOPPER)).names == ("cpu",)


def test_auto_is_a_gpu_that_can_do_what_is_asked() -> None:
    assert choose("auto", work(quantization="fp8"), cuda(AMPERE, ADA)).names == ("cuda:1",)


@pytest.mark.parametrize("what", [work("fused"), work(quantization="fp8"), work("fused", quantization="fp8")])
@pytest.mark.parametrize(
    ("found", "words"), [(NONE, "no CUDA driver"), (cuda(TURING), "no bfloat16, which begins at 8.0")]
)
def test_what_is_for_gpus_does_not_end_up_on_a_cpu(what: Work, found: Cuda, words: str) -> None:
    message = refusal("auto", what, found)
    assert "--devices auto" in message
    assert words in message
    assert choose("cpu", what, found).names == ("cpu",)  # where it is asked for: whether it can is the engine's to say


def test_the_fake_engine_takes_any_name() -> None:
    assert choose("a, b", work("fake"), NONE).names == ("a", "b")
    assert choose("cuda:7", work("fake"), NONE).names == ("cuda:7",)
    assert not devices.needs_driver("cuda:7", work("fake"))


def test_the_driver_is_not_asked_for_cpus() -> None:
    assert not devices.needs_driver("cpu,cpu", work())
    assert devices.needs_driver("auto", work())


@pytest.mark.parametrize(
    ("asked", "what", "found", "words"),
    [
        ("cuda:0", work(), NONE, f"--devices cuda:0: there is no CUDA driver here{CPU_INSTEAD}"),
        ("cuda", work(), NONE, "--devices cuda: there is no CUDA driver here"),
        ("cuda:0", work("fused"), NONE, "; --devices cpu --engine auto serves most models"),
        ("auto", work(quantization="fp8"), NONE, "; --devices cpu --quantization none serves most models"),
        ("auto", work("fused"), NONE, "; --engine fused --devices cpu is slow, for checks"),
        ("auto", work(quantization="fp8"), cuda(TURING, AMPERE), "; --quantization none computes in bfloat16 there"),
        ("auto", work("fused"), cuda(TURING), "with --dtype float32 or float16 runs there (--devices cuda:0)"),
        ("auto", work(quantization="fp8"), cuda(TURING), "; --engine transformers --quantization none with --dtype"),
        (
            "cpu",
            work("fused", "float16"),
            NONE,
            "the fused engine on a CPU, which has auto, float32, bfloat16",
        ),
        (
            "cuda:0",
            work("fused", "float32"),
            cuda(HOPPER),
            "which has auto, bfloat16, float16; --engine transformers",
        ),
        ("auto", work("auto", "float32", "fp8"), cuda(HOPPER), "--dtype float32 is not for the fused engine"),
        ("cuda:2", work(), cuda(HOPPER, HOPPER), "--devices cuda:2: there is no such GPU, only cuda:0, cuda:1"),
        ("cuda:0,cuda:1", work(), cuda(HOPPER), "--devices cuda:1: there is no such GPU, only cuda:0"),
        ("cpu,cuda:0", work(), cuda(HOPPER), "--devices: cpu can't be combined with other devices"),
        ("cuda:0,auto", work(), cuda(HOPPER), "--devices: auto can't be combined with other devices"),
        ("gpu", work(), cuda(HOPPER), "--devices takes auto, cpu, cuda"),
        ("cuda:", work(), cuda(HOPPER), "--devices takes auto, cpu, cuda"),
        ("cuda:-1", work(), cuda(HOPPER), "--devices takes auto, cpu, cuda"),
        ("cuda:²", work(), cuda(HOPPER), "--devices takes auto, cpu, cuda"),
        ("cuda:0", work("openvino"), cuda(HOPPER), "--engine openvino is for a CPU"),
        ("cuda:0", work(quantization="int8"), cuda(HOPPER), "--quantization int8 is for a CPU; fp8 is for GPUs"),
        (
            "cuda:0",
            work(),
            cuda(TURING),
            "no bfloat16, which begins at 8.0; --engine transformers with --dtype float32 or float16",
        ),
        ("cuda:0", work("fused"), cuda(TURING), "no bfloat16, which begins at 8.0; --engine transformers"),
        ("cuda", work(), cuda(HOPPER, TURING), "--devices: cuda:1 (GPU, compute capability 7.5) has no bfloat16"),
        ("cuda:0", work("transformers", "bfloat16"), cuda(TURING), "no bfloat16, which begins at 8.0"),
        ("cuda:0", work("fused", quantization="fp8"), cuda(AMPERE), "no FP8, which begins at 8.9; --quantization none"),
        ("cuda:0", work(quantization="fp8"), cuda(AMPERE), "no FP8, which begins at 8.9; --quantization none"),
    ],
)
def test_what_is_refused(asked: str, what: Work, found: Cuda, words: str) -> None:
    message = refusal(asked, what, found)
    assert "--devices" in message or "--dtype" in message
    assert words in message


@pytest.mark.parametrize("dtype", ["auto", "float32", "float16"])
def test_transformers_computes_on_old_gpus_too(dtype: str) -> None:
    assert choose("cuda:0", work("transformers", dtype), cuda(TURING)).names == ("cuda:0",)


def test_the_table_of_generations_and_what_is_asked_of_it_agree() -> None:
    capabilities = [generation.capability for generation in GENERATIONS]
    assert capabilities == sorted(capabilities)
    assert [has_bfloat16(one.capability) for one in GENERATIONS] == [one.has_bfloat16 for one in GENERATIONS]
    assert [has_fp8(one.capability) for one in GENERATIONS] == [one.has_fp8 for one in GENERATIONS]


def test_what_auto_computes_in() -> None:
    assert [dtype_of_auto(capability) for capability in (None, TURING, AMPERE, HOPPER)] == [
        "float32",
        "float32",
        "bfloat16",
        "bfloat16",
    ]
