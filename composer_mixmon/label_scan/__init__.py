"""``mixmon labels build``: a label file from a column of the samples, read shard by shard."""

from __future__ import annotations

from composer_mixmon.label_scan.build import Built, build_labels
from composer_mixmon.label_scan.show import print_built

__all__ = ["Built", "build_labels", "print_built"]
