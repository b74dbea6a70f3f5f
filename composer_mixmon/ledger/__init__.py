"""The ledger: the append-only record of a run, batch by batch, that outlives it.

A run's folder holds a *segment* for each process that trained it, a file of JSON lines (``lines``)::

    {"crc":…,"ledger":1,"run":…,"batch":0,"epoch":0,"first_sample":0,"labels":[…],"settings":{…},…}
    {"crc":…,"batch":0,"n":10,"epoch":0,"time":1790000000.123,"as":["u2","u4","f4"],"data":"z…"}
    {"crc":…,"from":10,"target":[0.5,0.5]}
    {"crc":…,"batch":10,"n":10,…}
    {"crc":…,"alarm":{"rule":…,"batch":19,…}}

The first line is the header (``header``). Each further one is an interval (``blocks``): ``n`` batches from
``batch`` on, whose counts, tokens, losses and order hashes are packed in ``data`` (``columns``); or the
target from a batch on, where it changed; or an alarm. Nothing is ever rewritten: what a resumption does again
supersedes what older segments hold from its first batch on (``reader``).
"""

from composer_mixmon.ledger.header import Header
from composer_mixmon.ledger.reader import Ledger, Part, read_ledger
from composer_mixmon.ledger.writer import Writer

__all__ = ["Header", "Ledger", "Part", "Writer", "read_ledger"]
