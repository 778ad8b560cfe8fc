"""Training of the tiny model that the package ships; not installed with it."""
