"""Integrity: watching the sample ids themselves.

::

    batch ──► watch.Integrity ──► numbers ──► the interval's all-reduce ──► books.Books ──► metrics, findings
                  │
        plan      is the rank fed what the settings imply? (a replay, beside the training)
        course    how much a pass is to deliver, and where padding may be
        spots     a sample of the ids, counted over all ranks: repeats, gaps, overlaps
    live: what torch's and streaming's objects say of themselves
"""
