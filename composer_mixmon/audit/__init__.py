"""``mixmon audit``: what the configured order will feed the model, computed before anything is trained.

::

    TRAIN.yaml ─► plan (settings, range of batches, labels) ─► watched (the replay) ─► counts
        ─► along (the books of a live run) ─► report ─► show, plot, JSON
        traps   what is known to go wrong     sweep   other settings and their cost     times   when
"""

from composer_mixmon.audit.plan import Options
from composer_mixmon.audit.report import Audit, audit_yaml

__all__ = ["Audit", "Options", "audit_yaml"]
