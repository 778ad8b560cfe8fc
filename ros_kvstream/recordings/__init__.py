"""Bags and videos: reading frames, finding topics, replaying, writing."""
