"""How charts look: colours, and names drawn as they are."""

from __future__ import annotations

from composer_mixmon.printing import printable

__all__ = ["ALARM", "GREY", "PALETTE", "literal"]

# Okabe and Ito's colours, told apart by colour-blind readers too.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
ALARM = "#D55E00"
GREY = "#999999"


def literal(text: str) -> str:
    """A name for matplotlib: no mathematics, and no leading underscore, which legends leave out."""
    shown = printable(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
