"""A limit on decompression. In: the size of packed data. Out: the maximum size of what it unpacks to. A file of numbers
compresses by a small factor; one that grows a thousandfold is damaged or an attack."""

from __future__ import annotations

import io

# A file may unpack to FREE_BYTES in any case, and to MAX_RATIO times its packed size.
FREE_BYTES = 256 << 20
MAX_RATIO = 32
_CHUNK = 1 << 18


def max_unpacked(packed: int) -> int:
    return FREE_BYTES + MAX_RATIO * packed


def unpack_gzip(data: bytes) -> bytes:
    """The contents of a gzip stream, read in parts; ValueError where it grows beyond bounds."""
    import gzip  # a file that is mapped asks for the limit alone

    limit = max_unpacked(len(data))
    parts: list[bytes] = []
    total = 0
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        while part := stream.read(_CHUNK):
            total += len(part)
            if total > limit:
                raise ValueError(f"{len(data)} bytes unpack to more than {limit}")
            parts.append(part)
    return b"".join(parts)
