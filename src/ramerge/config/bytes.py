"""Sizes as users write them: ``5GB``, ``512MiB``; programs give whole numbers of bytes."""

from __future__ import annotations

import re

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGT", start=1)}
_SIZE = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*([KMGT]?i?)(B?)", re.IGNORECASE)
# A number without a unit that is smaller than this was meant in another unit.
PLAIN = 1_000_000


def parse_size(text: str) -> int:
    """Bytes of a size with a unit: powers of 1000 (KB, MB, GB, TB) or of 1024 (KiB …), or ``B``.

    Raises:
        ValueError: no size, no unit, or less than one byte; says what to write.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match[2].upper().replace("I", "i") if match else "?"
    if match is None or unit not in UNITS:
        raise ValueError(f"`{text}` is not a size: write it with a unit, e.g., 5GB or 512MiB")
    if not unit and not match[3]:
        raise ValueError(f"`{text}` has no unit: write {text}GB, {text}MB, or {text}B for bytes")
    count = int(float(match[1].replace("_", "")) * UNITS[unit])
    if count < 1:
        raise ValueError(f"`{text}` is less than one byte")
    return count
