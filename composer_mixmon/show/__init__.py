"""``mixmon show``: a batch as it was."""

from composer_mixmon.show.report import Shown, print_shown, show_batch

__all__ = ["Shown", "print_shown", "show_batch"]
