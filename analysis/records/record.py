"""The base of every record that one stage hands to the next: frozen, typed, and plain data for JSON on demand.

A field's name is its JSON key, the order of fields the order of keys. A field that is ``UNSET`` has no key at all:
that is for keys that exist only in some captures. Unknown is ``None`` (``null``), never ``UNSET`` and never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import msgspec

Number = int | float  # a figure of a table of facts or of an option, shown as it is written there


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen record that also reads like the JSON object it becomes: ``record["key"]`` is ``record.key``."""

    #: Keys that stand before the inherited ones in the JSON.
    FIRST_KEYS: ClassVar[tuple[str, ...]] = ()

    def __getitem__(self, key: str) -> Any:
        """The value of a field that is set. Raises KeyError for any other name."""
        value = getattr(self, key, msgspec.UNSET) if key in self.__struct_fields__ else msgspec.UNSET
        if value is msgspec.UNSET:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self.__struct_fields__ and getattr(self, str(key)) is not msgspec.UNSET

    def __iter__(self) -> Iterator[str]:
        later = (key for key in self.__struct_fields__ if key not in self.FIRST_KEYS)
        return (key for key in (*self.FIRST_KEYS, *later) if key in self)

    def keys(self) -> tuple[str, ...]:
        """Names of the fields that are set, in the order of the JSON."""
        return tuple(self)

    def items(self) -> Iterator[tuple[str, Any]]:
        """The fields that are set, with their values, in the order of the JSON."""
        return ((key, self[key]) for key in self)

    def get(self, key: str, default: object = None) -> Any:
        """The value of a field, or ``default`` where it is not set or unknown by that name."""
        return self[key] if key in self else default  # noqa: SIM401 (this is that function)


Mapping.register(Record)  # readers that walk through any JSON object walk through a record too
