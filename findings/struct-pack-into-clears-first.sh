#!/bin/sh
# struct.pack_into of CPython 3.11.7: another process sees zeros that nobody wrote. Seen on 2026-11-29, Linux x86_64; 3.10,
# 3.12 and 3.13 write in the same order.
#
# Expected: where numbers that never were zero are packed again and again over each other in shared memory, a reader
# without a lock sees some number that was packed, perhaps an older one: each is eight bytes at an aligned place.
# What happens: pack_into first fills the whole place with zero bytes, and then writes field after field. So a reader
# finds a zero now and then. The first part shows the order without a second process: while the last number is asked
# for its value, the two before it are there, and its own place, which held 33, holds 0.
# Why it matters: levels in a page of shared memory are packed in one call where that is the fastest way. A reader that
# takes 0 for "nothing waits" or "no engine is there" then decides wrongly, rarely and without a trace. Items of a
# memoryview that are assigned one by one have only the old or the new value.
#
# Needs Python 3.11 to 3.13 and two cores; installs nothing. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/packing.py" <<'EOF'
import multiprocessing
import struct
import time
from multiprocessing.shared_memory import SharedMemory

FORM = struct.Struct("<64q")
SECONDS = 10.0  # at most


class Last:
    def __init__(self, target):
        self.target = target

    def __index__(self):
        print("before its last number is written:", struct.unpack("<3q", self.target))
        return 44


def by_pack_into(memory, numbers):
    FORM.pack_into(memory, 0, *numbers)


def by_items(memory, numbers):
    items = memory.cast("q")
    for place, number in enumerate(numbers):
        items[place] = number
    items.release()


def write(name, way, stop):
    shared = SharedMemory(name)
    memory, turn = shared.buf[: FORM.size], 0
    while not stop.is_set():
        turn += 1
        way(memory, [1 + turn % 2] * 64)
    memory.release()
    shared.close()


def sees_a_zero(way):
    context = multiprocessing.get_context("spawn")
    shared, stop = SharedMemory(create=True, size=FORM.size), context.Event()
    by_items(shared.buf[: FORM.size], [1] * 64)
    writer = context.Process(target=write, args=(shared.name, way, stop))
    writer.start()
    items, found, until = shared.buf[: FORM.size].cast("q"), False, time.monotonic() + SECONDS
    while not found and time.monotonic() < until:
        found = 0 in items.tolist()
    stop.set()
    writer.join()
    items.release()
    shared.close()
    shared.unlink()
    return found


if __name__ == "__main__":
    target = bytearray(struct.pack("<3q", 11, 22, 33))
    struct.pack_into("<3q", target, 0, 11, 22, Last(target))
    print("and then:", struct.unpack("<3q", target))
    print("a reader beside pack_into sees a zero:", sees_a_zero(by_pack_into))
    print("a reader beside items that are assigned sees a zero:", sees_a_zero(by_items))
EOF

cat > "$folder/seen" <<'EOF'
before its last number is written: (11, 22, 0)
and then: (11, 22, 44)
a reader beside pack_into sees a zero: True
a reader beside items that are assigned sees a zero: False
EOF

"${PYTHON:-python3}" "$folder/packing.py" | tee "$folder/found"
diff "$folder/seen" "$folder/found"
