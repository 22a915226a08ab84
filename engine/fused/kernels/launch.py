"""Divides wide rows among programs and threads. Knows no kernel.

Chosen by hand, so nothing is tuned at start. A program takes one row, or a part of one:

    width of a row      … 512   1024   2048   4096   8192   16384
    warps                   1      2      4      8     16      16
    numbers a thread       16     16     16     16     16      32

Sixteen numbers of two bytes are two 16-byte loads for each tensor that is read: enough in flight to keep memory busy,
few enough registers for many programs on a multiprocessor. Several narrow rows a program would save programs, but
then the norm's weights lie otherwise among the threads than the rows, and moving them costs more barriers than it
saves: with one row of up to 512 numbers, one warp needs none at all.
"""

from torch import Tensor

from engine.fused.model.ops import MAX_WIDTH

MAX_BLOCK = MAX_WIDTH  # numbers that one program can hold
_MAX_COLUMNS = 1024  # of a program that may stop anywhere in a row
_NUMBERS_PER_WARP = 32 * 16
_MAX_WARPS = 16


def block_for(width: int) -> int:
    """The block size, a power of two, of a program that holds a whole row."""
    assert width <= MAX_BLOCK, width
    return power_of_two(width)


def columns_for(width: int) -> int:
    """The block size, a power of two, of a program that holds a part of a row, or all of a short one."""
    return min(_MAX_COLUMNS, power_of_two(width))


def num_warps_for(block: int) -> int:
    """The warps of a program with this block size."""
    return min(_MAX_WARPS, max(1, block // _NUMBERS_PER_WARP))


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number` and 16."""
    return max(16, 1 << (number - 1).bit_length())


def row_stride(rows: Tensor) -> int:
    """The distance of rows, in numbers. The numbers of a row must be adjacent."""
    assert rows.stride(-1) == 1, rows.stride()
    return rows.stride(0)
