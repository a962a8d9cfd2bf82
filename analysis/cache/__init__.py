"""A finished Analysis is kept beside its capture's fingerprint, so that a second look is immediate."""
