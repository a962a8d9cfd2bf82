"""What each step shows: one row of evidence per step for the ladder that decides its phase."""
