"""The fused engine attends by our own kernel, or by what that kernel means in plain torch, and reaches no other way."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.structure.sources import Source, dotted, sources

KERNEL, REFERENCE = Path("engine/fused/kernels/attention.py"), Path("engine/fused/model/reference.py")
MEANING = Path("engine/fused/model/ops.py")  # the protocol of both
OTHERS = re.compile(
    r"scaled_dot_product|sdpa|_attention_forward|varlen|flex_attention|multi_?head_?attention|cudnn(?!_status)|xformers",
    re.IGNORECASE,
)


def reachable() -> list[Source]:
    """The files of engine/fused, and all of ours that these import, directly or not."""
    by_module = {source.module: source for source in sources()}
    found: dict[str, Source] = {}
    waiting = [source for source in by_module.values() if source.module.startswith("engine.fused")]
    while waiting:
        source = waiting.pop()
        if source.module in found:
            continue
        found[source.module] = source
        names = (part for name in source.imports() for part in (name, name.rpartition(".")[0]))
        waiting.extend(by_module[name] for name in names if name in by_module)
    return list(found.values())


def identifiers(source: Source) -> Iterator[str]:
    """Names in the code, and texts of one word, by which things can be looked up."""
    for node in ast.walk(source.tree()):
        match node:
            case ast.Name() | ast.Attribute():
                yield dotted(node)
            case ast.Constant(value=str(text)) if " " not in text:
                yield text
    yield from source.imports()


def other_ways(source: Source) -> set[str]:
    return {name for name in identifiers(source) if OTHERS.search(name)}


@pytest.mark.holds("The fused engine attends by our kernel alone")
def test_no_other_attention_is_within_reach() -> None:
    files = reachable()
    assert {KERNEL, REFERENCE, Path("engine/machine/devices.py")} <= {source.path for source in files}
    assert {str(source.path): found for source in files if (found := other_ways(source))} == {}


def test_the_kernel_and_its_reference_are_all_that_attend() -> None:
    found = {
        source.path
        for source in sources("engine")
        if source.path.is_relative_to("engine/fused")
        for node in ast.walk(source.tree())
        if isinstance(node, ast.FunctionDef) and node.name == "attend"
    }
    assert found == {KERNEL, REFERENCE, MEANING}


@pytest.mark.parametrize(
    "text",
    [
        "from engine.machine.varlen import varlen",
        "functional.scaled_dot_product_attention(q, k, v)",
        "torch.ops.aten._cudnn_attention_forward(q, k, v)",
        "getattr(torch.ops.aten, '_flash_attention_forward')",
        "from torch.nn.attention.flex_attention import create_block_mask",
        "nn.MultiheadAttention(8, 2)",
    ],
)
def test_another_way_is_found(text: str) -> None:
    assert other_ways(Source(Path("engine/fused/a.py"), text))
