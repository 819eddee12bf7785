"""One file for each inference library."""
