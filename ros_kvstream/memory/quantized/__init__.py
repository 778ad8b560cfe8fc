"""The arena in 16, 8 and 4 bits."""
