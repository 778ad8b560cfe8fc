"""Commands of ``kvstream`` that belong to no other part of the package."""
