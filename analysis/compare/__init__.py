"""What changed between two runs: comparability first, then adjusted and tested differences, then one verdict."""

from __future__ import annotations

from .compare_runs import Comparison, compare_profiles
from .run_profile import Profile, RunIdentity, profile_from_json, profile_json, profile_of

__all__ = [
    "Comparison",
    "Profile",
    "RunIdentity",
    "compare_profiles",
    "profile_from_json",
    "profile_json",
    "profile_of",
]
