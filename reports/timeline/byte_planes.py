"""Arrays as bytes: whole numbers in byte planes behind a JSON header, deflated and coded in base64.

Byte planes (all first bytes, then all second bytes, ...) of differences deflate to a third of interleaved values.
``assets/arrays.js`` is the other end.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

Ints = npt.NDArray[np.int64]
LEVEL = 5  # of deflate: 9 takes three times as long for 3% less


class Pack:
    """Collects arrays; each ``add_*`` gives the reference that the header carries in the array's place."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def whole(self, values: npt.ArrayLike) -> dict[str, int]:
        """Non-negative whole numbers, in as many byte planes as the largest needs.

        A page reads them as doubles: exactly up to 2**53 (104 days in ns), rounded beyond. Raises ValueError for a
        negative number.
        """
        numbers = np.ascontiguousarray(values, dtype=np.uint64)
        largest = int(numbers.max()) if numbers.size else 0
        planes = max(1, (largest.bit_length() + 7) // 8)
        if largest >= 2**63:
            raise ValueError("a negative value where none can be")
        matrix = numbers.view(np.uint8).reshape(-1, 8)[:, :planes] if numbers.size else np.empty((0, planes), np.uint8)
        return self._add(matrix.T.tobytes(), numbers.size, planes)

    def signed(self, values: npt.ArrayLike) -> dict[str, int]:
        """Whole numbers of either sign (zigzag: 0, -1, 1, -2, ...)."""
        numbers = np.asarray(values, dtype=np.int64)
        return self.whole((numbers << 1) ^ (numbers >> 63))

    def maybe(self, values: npt.ArrayLike, known: npt.ArrayLike) -> dict[str, int]:
        """Non-negative whole numbers of which some are unknown: 0 is unknown, else the value plus one."""
        return self.whole(np.where(np.asarray(known, bool), np.asarray(values, np.int64) + 1, 0))

    def floats(self, values: npt.ArrayLike) -> dict[str, int]:
        """32-bit floats; NaN is unknown."""
        numbers = np.ascontiguousarray(values, dtype="<f4")
        matrix = numbers.view(np.uint8).reshape(-1, 4) if numbers.size else np.empty((0, 4), np.uint8)
        return self._add(matrix.T.tobytes(), numbers.size, 4)

    def intervals(self, starts: Ints, ends: Ints) -> dict[str, Any]:
        """Intervals sorted by start, as the step from the end before to the start, and the length."""
        before = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
        return {"n": len(starts), "step": self.signed(starts - before), "length": self.whole(ends - starts)}

    def _add(self, data: bytes, count: int, planes: int) -> dict[str, int]:
        reference = {"at": self._size, "n": int(count), "planes": planes}
        self._parts.append(data)
        self._size += len(data)
        return reference

    def finish(self, header: dict[str, Any]) -> str:
        """Length of the header (4 bytes), header, arrays: deflated, in base64."""
        head = orjson.dumps(header, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
        body = b"".join([len(head).to_bytes(4, "little"), head, *self._parts])
        return base64.b64encode(zlib.compress(body, LEVEL)).decode("ascii")
