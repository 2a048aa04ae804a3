"""The HIP device. In: a name. Out: the reason why there is none: kernels for AMD cards are written, and compared, as
text, and no card was there to run them on."""

from __future__ import annotations

from tilewright.runtime.device import Driver, Unavailable


def open_device(name: str) -> Driver:
    raise Unavailable(
        "kernels are rendered as HIP text, which no AMD card has run yet; there is no driver", "use another device"
    )
