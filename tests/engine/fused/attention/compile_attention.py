"""Compiles the kernel for GPUs that are not there, in the sizes that it is launched in; prints what came of each.

    python -m tests.engine.fused.attention.compile_attention ARCH "HEAD_DIM BLOCK RULE" ...

ARCH is a compute capability, one of compile_kernels.SHARED_MEMORY. RULE is "full", or some of "causal", "window",
"softcap" and "bias" with a comma between; "float32" may stand among them, and "tried0", … for one of cases.TRIED. A
process of its own, since Triton must not interpret.
"""

import json
import sys

import torch
from triton.runtime import driver

from engine.fused.kernels.attention import attend, attend_tiles, sizes_for
from engine.fused.model.ops import AttentionRule, Tiles
from tests.engine.fused.attention.cases import TRIED
from tests.engine.fused.kernels.compile_kernels import CompilingDriver

NUM_HEADS, NUM_KV_HEADS = 16, 8


def launch(arch: int, head_dim: int, block: int, names: list[str]) -> None:
    dtype = torch.float32 if "float32" in names else torch.bfloat16
    rows = torch.empty((16, NUM_HEADS + 2 * NUM_KV_HEADS, head_dim), dtype=dtype)
    query, key, value = torch.split(rows, [NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS], dim=1)
    rule = AttentionRule(
        is_causal="causal" in names,
        scaling=head_dim**-0.5,
        window=100 if "window" in names else None,
        softcap=50.0 if "softcap" in names else None,
        relative_bias=torch.empty((NUM_HEADS, 255)) if "bias" in names else None,
    )
    tiles = Tiles(torch.zeros((1, 5), dtype=torch.int32), block)
    capability = (arch // 10, arch % 10)
    sizes = sizes_for(head_dim, block, capability, has_bias="bias" in names, is_float32=dtype == torch.float32)
    for name in names:
        if name.startswith("tried"):
            sizes = TRIED[head_dim][int(name.removeprefix("tried"))]
    attend(query, key, value, tiles, rule, sizes=sizes)


def main(arch: int, cases: list[str]) -> None:
    compiling = CompilingDriver(arch)
    driver.set_active(compiling)
    found = []
    for case in cases:
        head_dim, block, rule = case.split()
        launch(arch, int(head_dim), int(block), rule.split(","))
        _, num_registers, spilled, shared = compiling.loaded[-1]
        assembly = list(attend_tiles.device_caches[arch][0].values())[-1].asm["ptx"]
        found.append(
            {
                "case": case,
                "num_registers": num_registers,
                "spilled": spilled,  # bytes a thread
                "shared": shared,  # bytes a program
                "products": {name: name in assembly for name in ("wgmma.mma_async", "tcgen05.mma", "mma.sync")},
            }
        )
    assert len(compiling.loaded) == len(cases)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
