"""What changed between two runs: comparability first, then adjusted and tested differences, then one verdict."""

from __future__ import annotations

from .profile import Profile, profile_from_json, profile_json, profile_of
from .verdict import Comparison, compare_profiles

__all__ = ["Comparison", "Profile", "compare_profiles", "profile_from_json", "profile_json", "profile_of"]
