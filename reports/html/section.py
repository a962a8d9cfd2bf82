"""What a part of the page below the first screen is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .json_objects import Fact
from .sortable_tables import Table


@dataclass(frozen=True)
class Section:
    """A heading with its lead sentence, facts, tables and, where ``part`` says so, a part of the template."""

    id: str
    title: str
    lead: str = ""
    facts: Sequence[Fact] = ()
    tables: Sequence[Table] = ()
    part: str = ""  # name of a template block: 'timeline' | 'roofline' | 'findings' | 'glossary' | 'formulas'
    empty: str = ""  # said where there is nothing to show
    data: Mapping[str, Any] = field(default_factory=dict)
