"""Post-mortem: from a diverged run to the cause, or to the proof that it was not the data."""
