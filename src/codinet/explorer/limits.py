"""What one visitor, or a hundred at once, may cost the machine."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on memory, whatever is sent.

    Uploads in memory are at most `uploads` × `upload_bytes`, 80 MB. Pictures are decoded one at a time, which
    takes up to 0.5 GB for the largest with transparency and 0.2 GB for a photograph of that size. A request
    that finds `waiting` others before it is told to come back.
    """

    upload_bytes: int = 10_000_000
    upload_pixels: int = 25_000_000  # a common camera's 6000×4000
    upload_seconds: float = 30.0
    uploads: int = 8
    workers: int = 2
    waiting: int = 256
