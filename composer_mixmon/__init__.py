"""Shows which data a Composer training run is really fed, and stops it when it is fed wrongly.

The pure core (``statistics``, ``labels``, ``mixture``, ``alarms``, ``replay``) needs numpy alone, so
:class:`MixMon`, which needs torch and Composer, is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer_mixmon.errors import MixmonError

if TYPE_CHECKING:
    from composer_mixmon.callback import MixMon

__version__ = "0.1.0"
__all__ = ["MixMon", "MixmonError", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "MixMon":
        from composer_mixmon.callback import MixMon

        return MixMon
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
