"""``mixmon postmortem``: whether the data are why a run's loss swings or diverges.

::

    RunRecord ─► course (the books of a live run, see-saw, drift) ─┐
              ─► effect, onset (what the loss has to do with it) ──┼─► verdict ─► Findings ─► show, JSON,
              ─► kept (order hashes against a replay's) ───────────┘                        charts, page
"""
