"""The decode loop and what belongs to it, above any backend."""
