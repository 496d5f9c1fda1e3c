"""Read what the machine code of a kernel says: registers, widths of loads, and loops."""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path


def disassembled(cubin: bytes) -> tuple[dict[str, int], Sequence[str]]:
    """Return the resources of a kernel, and its lines of machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _run(_tool("cuobjdump"), "--dump-resource-usage", file.name)
        code = _run(_tool("nvdisasm"), "-c", file.name)
    return {name: int(count) for name, count in re.findall(r"(REG|STACK|SHARED):(\d+)", usage)}, (
        code.splitlines()
    )


@cache
def _tool(name: str) -> str:
    import triton

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def bytes_of(access: str, code: Sequence[str]) -> int:
    """Return the bytes of the most common load (LDG) or store (STG) of global memory.

    Of widths that are equally common, the narrowest.
    """
    widths = [re.search(rf"\b{access}\.E(?:\.BYPASS)?(?:\.(\d+|U8|U16))?", line) for line in code]
    bits = [int((found.group(1) or "32").removeprefix("U")) for found in widths if found]
    return max(sorted(set(bits)), key=bits.count) // 8


def loops_of(code: Sequence[str], name: str = "") -> tuple[int, int]:
    """Count instructions of the outer loop that reads global memory, and of its inner ones.

    Args:
        code: lines of machine code.
        name: a part of the names of the instructions to count; without one, all of them.
    """
    instructions, loops = _loops(code)
    outer = max(loops, key=lambda loop: loop[1] - loop[0])
    inner = [loop for loop in loops if outer[0] <= loop[0] < loop[1] < outer[1]]

    def count(start: int, stop: int) -> int:
        return sum(name in instruction for instruction in instructions[start:stop])

    return count(*outer), sum(count(*loop) for loop in inner)


def loads_of(code: Sequence[str]) -> tuple[int, int]:
    """Return the loads of a round of the loop that has most of them, and how many wait at once.

    A load waits until the first instruction that names its register. Those into shared memory,
    which name none, never do.
    """
    instructions, loops = _loops(code)
    begin, end = max(loops, key=lambda loop: _count_loads(instructions[loop[0] : loop[1]]))
    waiting: set[str] = set()
    most = 0
    # Twice, as a load may be put off into the next round.
    for instruction in 2 * instructions[begin:end]:
        if found := re.search(r"LDG\.\S*\s+(?:P\d+,\s*)?(R\d+)", instruction):
            waiting.add(found.group(1))
            most = max(most, len(waiting))
        else:
            waiting.difference_update(re.findall(r"\bR\d+\b", instruction))
    return _count_loads(instructions[begin:end]), most


def _count_loads(instructions: Sequence[str]) -> int:
    return sum("LDG" in instruction for instruction in instructions)


def _loops(code: Sequence[str]) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the instructions, and where those loops begin and end that read global memory."""
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    instructions: list[str] = []
    for line in code:
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label.group(1)] = len(instructions)
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(\S.*)", line):
            jump = re.search(r"\bBRA\b.*(\.L_x_\d+)", line)
            if jump and jump.group(1) in labels:
                loops.append((labels[jump.group(1)], len(instructions) + 1))
            instructions.append(found.group(1))
    return instructions, [loop for loop in loops if _count_loads(instructions[loop[0] : loop[1]])]
