"""The Composer callback: events in, metrics and alarms out."""

# Torch, Composer and streaming are typed only in part: what comes out of them is unknown to pyright.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from composer.core import Callback, State
from composer.loggers import Logger
from composer.utils import dist

from composer_mixmon.actions import Actions
from composer_mixmon.alarms import Alarm
from composer_mixmon.annotate import Annotator
from composer_mixmon.assembly import Assembly, assemble, current_phase, run_config
from composer_mixmon.config import MonitorConfig
from composer_mixmon.dataset import rank_batch_size, replication
from composer_mixmon.errors import ConfigError, DatasetError, MixmonError, MixtureAlarm
from composer_mixmon.integrity.finding import Finding
from composer_mixmon.integrity.live import watch_data
from composer_mixmon.integrity.watch import Batch, Integrity
from composer_mixmon.label_loss import LabelLoss
from composer_mixmon.ledger.keeper import Keeper
from composer_mixmon.log_settings import log_settings
from composer_mixmon.monitor import Monitor
from composer_mixmon.packed import PackedTap, find_packer
from composer_mixmon.ranks import RankFailedError, Ranks, agree
from composer_mixmon.recent_shards import RecentShards
from composer_mixmon.tap import Tap, check_loader
from composer_mixmon.wandb_version import explain_new_wandb

__all__ = ["MixMon"]

log = logging.getLogger("composer_mixmon")

_ALARMS = "mixmon/alarms"
_PACKED = 1 << 16  # places of a rank in the global batch where it holds any number of sequences
_PATIENCE = 5.0  # seconds that the end of training waits for a plan that is still being computed


@dataclass(frozen=True)
class _Watch:
    """What exists while a DataLoader is watched."""

    tap: Tap | PackedTap
    monitor: Monitor
    ranks: Ranks
    shards: RecentShards
    integrity: Integrity | None
    first_position: int | None  # of this rank's samples in the global batch; None: another rank counts them
    settings: dict[str, Any]  # what the run's config is told
    losses: LabelLoss | None = None


class MixMon(Callback):
    """Shows which labels a run is really fed, and speaks up when it is fed wrongly.

    Reads the sample ids of every training batch out of the DataLoader's workers, without changing the
    dataset's code, the collator or the batch. Every ``log_interval`` batches, one all-reduce adds up the
    counts of all ranks, and these are logged in one call beside the loss of the interval's last batch:

    +------------------------------------+-------------------------------------------------------------------+
    | Key                                | Logged data                                                       |
    +====================================+===================================================================+
    | ``mixmon/window/ratio/<label>``    | The label's share of the last ``window`` batches                  |
    +------------------------------------+-------------------------------------------------------------------+
    | ``mixmon/window/deviation``        | Total variation distance of these shares from the target          |
    +------------------------------------+-------------------------------------------------------------------+
    | ``mixmon/window/noise_floor``      | The deviation that a perfect shuffle shows at this many samples   |
    +------------------------------------+-------------------------------------------------------------------+
    | ``mixmon/window/dispersion``       | Mean chi² per degree of freedom of its batches: 1 is a perfect    |
    |                                    | shuffle, more is clumped, less is stratified                      |
    +------------------------------------+-------------------------------------------------------------------+
    | ``mixmon/run/ratio/<label>``       | The label's share of the run so far, over resumptions             |
    +------------------------------------+-------------------------------------------------------------------+
    | ``mixmon/run/deviation``           | Total variation distance of these shares from the target          |
    +------------------------------------+-------------------------------------------------------------------+
    | ``mixmon/tokens/ratio/<label>``    | The label's share of the tokens of the last ``window`` batches,   |
    |                                    | rounded up to whole intervals, where the batches tell tokens      |
    +------------------------------------+-------------------------------------------------------------------+
    | ``mixmon/tokens/deviation``        | Total variation distance of these shares from the target          |
    +------------------------------------+-------------------------------------------------------------------+
    | ``mixmon/loss/<label>``            | Mean loss of the label's tokens, with ``loss``, over the chosen   |
    |                                    | batches that have been trained on since the last log              |
    +------------------------------------+-------------------------------------------------------------------+
    | ``mixmon/evidence``                | log10 of the evidence against "no share is further from its       |
    |                                    | target than the tolerance"; an alarm at that of false_alarm_every |
    +------------------------------------+-------------------------------------------------------------------+
    | ``mixmon/alarms``                  | Alarms so far in the run                                          |
    +------------------------------------+-------------------------------------------------------------------+
    | ``mixmon/integrity/plan_mismatch`` | Rank batches so far in the run that were not the samples that the |
    |                                    | settings imply                                                    |
    +------------------------------------+-------------------------------------------------------------------+
    | ``mixmon/integrity/repeats``       | Samples so far in the run that came again within an epoch, beyond |
    |                                    | what repeat, choose and filling up the ranks imply                |
    +------------------------------------+-------------------------------------------------------------------+
    | ``mixmon/integrity/gaps``          | Samples so far in the run that an epoch left out                  |
    +------------------------------------+-------------------------------------------------------------------+
    | ``mixmon/integrity/rank_overlap``  | Samples so far in the run that came on several ranks, beyond what |
    |                                    | replication implies                                               |
    +------------------------------------+-------------------------------------------------------------------+

    A label is its own name there, unless a logger would refuse it or take it for another: see
    :func:`~composer_mixmon.metric_names.metric_names`. Of more than 61 labels, the 60 with the largest
    targets are logged one by one, and the rest as ``other``.

    Args:
        labels: What a sample counts as: ``"stream"``; ``{"shards": {"ja": "ja/*", "en": ["en/*", "0:8"]}}``
            with globs over the shards' names or half-open ranges of shard numbers; ``{"position": 10}``
            for equal parts of the dataset; ``{"file": path}`` for a label file; or ``{"column": "source"}``
            for what each sample itself has there, where the labels are those that have a target, or those of
            the label file in ``{"column": "source", "file": path}``.
        target: ``"auto"`` for the dataset's own shares after proportion, repeat and choose; a mapping of each
            label's share, where labels that it leaves out have the target 0; or a list of phases such as
            ``[{"from": "0ba", "target": "auto"}, {"from": "0.9dur", "target": {"ja": 0.5, "en": 0.5}}]``.
        window: Batches in the window, as ``"100ba"``.
        log_interval: Batches from one log to the next, as ``"10ba"``.
        alarm: A mapping. ``tolerance`` (0.05) is the smallest bias of a share worth an alarm, or ``None`` to
            take no evidence, and ``false_alarm_every`` (``"1_000_000ba"``) how many batches a false alarm of
            the evidence is apart, at least, on average. ``rules`` are further thresholds on the window, such
            as ``{"deviation": 0.2, "for": "20ba", "grace": "50ba"}``, ``{"dispersion": 3.0}`` or
            ``{"ratio": "ja", "below": 0.4, "above": 0.6}``: ``for`` is how many batches in a row it takes,
            ``grace`` how many at the run's start are not looked at (a window's, if unset). ``action``
            (``"log"``) is any list of ``log``, ``wandb``, ``checkpoint``, ``stop``, ``raise``,
            ``{"webhook": URL}`` and functions that take the :class:`~composer_mixmon.alarms.Alarm`.
        ledger: Whether and where the run's :mod:`~composer_mixmon.ledger` is kept: what each batch held, for
            ever. ``True``: in ``{save_folder}/mixmon``, if the run has a ``save_folder``, and uploaded where
            that is a URI; ``False`` or ``None``: nowhere; or a folder, in which ``{run_name}`` stands for the
            run's name. ``{"folder": …, "rank_ids": True}`` keeps every sample id, too; without ``folder``,
            where ``True`` would.
        integrity: Whether the sample ids themselves are watched (see :mod:`~composer_mixmon.integrity`), or
            ``{"plan": True, "repeats": False}``: ``plan`` compares every batch with what the settings imply,
            ``repeats`` looks for repeats, gaps, overlaps between ranks and epochs of the same order. What
            they find is an alarm event.
        loss: ``{"every": "50ba"}`` takes the loss by label on every 50th batch, from the first on, out of
            the logits and labels of the step itself: cross entropy in nats a token, of masked, causal and
            sparse prediction. It has to be the loss that the step has computed, or a named part of that:
            where it is not, for the sake of label smoothing, say, one warning says so and none is logged.
            ``True``: as written here; ``None`` or ``False``: none is taken.

    Raises:
        ConfigError: A setting is wrong, here or, where the dataset is needed to know, at the start of fit.
    """

    def __init__(
        self,
        labels: Any = "stream",
        target: Any = "auto",
        window: str | int = "100ba",
        log_interval: str | int = "10ba",
        alarm: Any = None,
        ledger: Any = True,
        integrity: Any = True,
        loss: Any = None,
    ) -> None:
        self._config = MonitorConfig.read(
            labels, target, window, log_interval, alarm, ledger, integrity, loss
        )
        self._ledger = Keeper(self._config.ledger)
        self._actions = Actions(self._config.alarm.actions)
        self._saved: dict[str, Any] = {}
        self._watch: _Watch | None = None
        self._off = False
        self._closed = False  # the run is over; a new Trainer with the same callback is a new one
        self._logger_failed = False
        explain_new_wandb()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Attach to the DataLoader. Whatever is wrong with the settings is raised here."""
        error = self._start(state, logger)
        if isinstance(error, MixmonError):
            raise error
        if error is not None:
            _warn(error)

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Follow to another DataLoader, where a curriculum has put one in."""
        error = self._start(state, logger)
        if error is not None:
            _warn(error)

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Take the batch's labels; where it ends an interval, add up over the ranks and log."""
        watch = self._watch
        if watch is None:
            return
        batch = int(state.timestamp.batch)
        with self._guard(watch):
            phase = current_phase(self._config.target, state)
            if phase != watch.monitor.phase:
                self._finish(watch, state, logger)
                watch.monitor.enter(phase)
            if not watch.ranks.failed:
                self._ledger.put(batch, _take(watch, state))
        if self._watch is watch and (batch + 1) % self._config.interval == 0:
            with self._guard(watch):
                self._log(logger, watch, watch.monitor.draft(batch, watch.ranks.add_up))

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """The batch's microbatches begin, perhaps once more."""
        watch = self._watch
        if watch is not None and watch.losses:
            with self._guard(watch):
                watch.losses.restart()

    def after_loss(self, state: State, logger: Logger) -> None:
        """Take the loss of a microbatch by label."""
        watch = self._watch
        if watch is not None and watch.losses:
            with self._guard(watch):
                watch.losses.take(state.outputs, state.batch, state.loss)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Count the batch, now that it has been trained on; act on the alarms of the interval."""
        watch = self._watch
        if watch is None:
            return
        with self._guard(watch):
            batch, epoch, loss = int(state.timestamp.batch) - 1, int(state.timestamp.epoch), _loss(state)
            alarms = watch.monitor.done(batch, epoch, loss)
            if watch.losses:
                watch.losses.done(math.isfinite(loss))
            self._act(watch, [*alarms, *_settle(watch, batch)], state, logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Judge what came of the epoch, and what did not."""
        watch = self._watch
        if watch is None or watch.integrity is None:
            return
        with self._guard(watch):
            watch.monitor.flush(watch.ranks.add_up)
            batch = int(state.timestamp.batch) - 1
            found = _settle(watch, batch)
            found += watch.integrity.end_epoch(batch, *_extent(state))
            self._act(watch, found, state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Log what the last interval has left over."""
        watch = self._watch
        if watch is None:
            return
        with self._guard(watch):
            if watch.integrity:
                watch.integrity.wait(_PATIENCE)
            self._finish(watch, state, logger)

    def close(self, state: State, logger: Logger) -> None:
        """Let go of the DataLoader."""
        del state, logger
        self._closed, self._saved = True, {}
        for end in (self._ledger.close, self._actions.close, *_ends(self._watch)):
            try:
                end()
            except Exception as error:
                log.warning("mixmon: at the end of the run: %r", error, exc_info=error)

    def state_dict(self) -> dict[str, Any]:
        """The books over all ranks, as plain types; Composer asks every rank at the same time."""
        watch = self._watch
        if watch is None:
            return self._saved
        with self._guard(watch):
            books = watch.monitor.state_dict(watch.ranks.add_up)
            self._keep(watch)  # before the checkpoint is written: a run resumed from it goes on behind it
            if watch.losses:
                watch.losses.flush(watch.ranks.add_up)
            checks = {"integrity": watch.integrity, "loss": watch.losses}
            saved = {name: part.state_dict() if part else {} for name, part in checks.items()}
            return books | {"ledger": self._ledger.run} | saved
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the books of a checkpoint until the labels are known, at the start of fit."""
        self._saved = state

    def _start(self, state: State, logger: Logger) -> Exception | None:
        """Attach to the DataLoader that is current now, on all ranks or on none.

        Returns:
            Why monitoring is off now; on every rank a :class:`MixmonError`, if any has raised one.
        """
        if self._closed:
            self._watch, self._off, self._closed = None, False, False
        watch = self._watch
        if watch is not None:
            if watch.tap.dataloader is state.dataloader:
                return None
            self._saved = self.state_dict()
        if self._off:  # before, or by a fault that came to light just now
            return None
        error: Exception | None = None
        try:
            if watch is not None:
                watch.tap.detach()
            self._watch = self._attach(state, logger)
        except Exception as caught:
            error = caught
        try:
            error = agree(state, error)
        except Exception as caught:
            error = caught
        if error is not None:
            self._let_go()
        elif self._watch is not None:
            with self._guard(self._watch):
                self._begin_ledger(self._watch, state, resumed=watch is None and state.timestamp.batch > 0)
        return error

    def _begin_ledger(self, watch: _Watch, state: State, resumed: bool) -> None:
        monitor = watch.monitor
        target, saved = monitor.targets[monitor.phase], self._saved.get("ledger")
        self._ledger.begin(state, saved, resumed, monitor.names, target, watch.settings, watch.first_position)

    def _attach(self, state: State, logger: Logger) -> _Watch:
        packer = find_packer(state.dataloader)
        loader: Any = state.dataloader if packer is None else packer.src_iterable
        check_loader(loader)
        if sum(isinstance(callback, MixMon) for callback in state.callbacks) > 1:
            mend = "their metrics and saved counts would mix: give the Trainer one"
            raise ConfigError("callbacks", "two MixMon", mend)
        if packer is not None and self._config.loss:
            mend = "the rows of packed batches are no samples, whose losses could be told apart: leave it out"
            raise ConfigError("loss", f"every {self._config.loss}ba", mend)
        self._actions.check(state)
        self._ledger.check(state)
        parts, integrity, losses = self._assemble(loader, state, packer is not None)
        if self._saved:
            try:
                parts.monitor.load_state_dict(self._saved)
                if integrity and self._saved.get("integrity"):
                    integrity.books.load_state_dict(self._saved["integrity"])
                if losses and self._saved.get("loss"):
                    losses.load_state_dict(self._saved["loss"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                log.warning("mixmon counts afresh, for it cannot go on from the saved counts: %s", error)
                # not from what was loaded up to there
                parts, integrity, losses = self._assemble(loader, state, packer is not None)
        if dist.get_global_rank() == 0:
            for remark in parts.remarks:
                log.warning("mixmon: %s", remark)
        settings = run_config(self._config, parts, loader)
        for destination in logger.destinations:
            self._tell(partial(log_settings, destination, settings, again=self._watch is not None))
        twin, copy = divmod(dist.get_global_rank(), replication(loader))
        first_position = twin * (rank_batch_size(loader) if packer is None else _PACKED)
        annotate = Annotator(parts.labels, first_position)
        return _Watch(
            Tap(loader, annotate) if packer is None else PackedTap(state.dataloader, annotate),
            parts.monitor,
            Ranks(state),
            RecentShards(parts.shards, self._config.window + self._config.interval),
            integrity,
            None if copy else first_position,
            settings,
            losses,
        )

    def _assemble(
        self, loader: Any, state: State, packed: bool
    ) -> tuple[Assembly, Integrity | None, LabelLoss | None]:
        """The books and the checks of a DataLoader, empty; the order of packed sequences is not checked."""
        wanted = None if packed else self._config.integrity
        integrity = watch_data(wanted, loader, state) if wanted else None
        parts, every = assemble(self._config, loader), self._config.loss
        losses = LabelLoss(parts.monitor.logged, every, dist.get_global_rank() == 0) if every else None
        for rider in filter(None, (integrity, losses)):
            parts.monitor.carry(rider)
        return parts, integrity, losses

    def _finish(self, watch: _Watch, state: State, logger: Logger) -> None:
        """Close the interval early: the run, or a phase of it, is over."""
        batch = int(state.timestamp.batch) - 1
        figures, alarms = watch.monitor.finish(batch, watch.ranks.add_up)
        if watch.losses:
            watch.losses.flush(watch.ranks.add_up)
        self._log(logger, watch, figures)
        if watch.losses:
            watch.losses.settle()
        self._act(watch, [*alarms, *_settle(watch, batch)], state, logger)

    def _act(self, watch: _Watch, alarms: Sequence[Alarm], state: State, logger: Logger) -> None:
        """Keep what an interval has closed, and act on its alarms."""
        involved = [watch.shards.involve(alarm) for alarm in alarms]
        self._keep(watch, involved)
        self._actions.take(involved, state, logger)

    def _keep(self, watch: _Watch, alarms: Sequence[Alarm] = ()) -> None:
        """Write the batches that have been trained on to the ledger."""
        target = watch.monitor.targets[watch.monitor.phase]
        self._ledger.write(watch.monitor.drain(), target, [alarm.to_dict() for alarm in alarms])

    def _log(self, logger: Logger, watch: _Watch, figures: dict[str, float]) -> None:
        if figures and watch.integrity:
            found = watch.integrity.metrics
            figures |= found | {_ALARMS: figures[_ALARMS] + found[_ALARMS]}
        if watch.losses:
            figures |= watch.losses.report()
        if figures:
            self._tell(lambda: logger.log_metrics(figures))

    def _tell(self, log_it: Callable[[], None]) -> None:
        """Log, where a logger that raises costs a warning and neither the run nor the monitoring."""
        try:
            log_it()
        except Exception as error:
            if not self._logger_failed:
                log.warning("mixmon: a logger did not take what was logged: %r", error)
            self._logger_failed = True

    @contextmanager
    def _guard(self, watch: _Watch) -> Generator[None]:
        """Keep our faults to ourselves: one warning, monitoring off on every rank, training goes on."""
        try:
            yield
        except MixtureAlarm:
            raise
        except RankFailedError as error:
            self._turn_off(error)
        except Exception as error:
            if dist.get_world_size() == 1:
                self._turn_off(error)
            elif not watch.ranks.failed:
                watch.ranks.failed = True  # the other ranks learn of it when the interval is added up
                _warn(error)

    def _turn_off(self, error: Exception) -> None:
        """Stop monitoring on this rank; all ranks do so at the same batch."""
        if self._watch is None or not self._watch.ranks.failed:
            _warn(error)
        self._let_go()

    def _let_go(self) -> None:
        """Monitoring is over for good."""
        watch, self._watch, self._saved, self._off = self._watch, None, {}, True
        for end in (self._ledger.drop, *_ends(watch)):
            with suppress(Exception):  # what is left on costs nothing but time
                end()


def _ends(watch: _Watch | None) -> list[Callable[[], None]]:
    """What ends the watching of a DataLoader."""
    if watch is None:
        return []
    return [watch.tap.detach, *([watch.integrity.stop] if watch.integrity else [])]


def _settle(watch: _Watch, batch: int) -> list[Finding]:
    """Enter what was added up for the checks, now that it has been trained on; returns what they find."""
    return watch.integrity.settle(batch) if watch.integrity else []


def _extent(state: State) -> tuple[int, bool]:
    """How many batches the epoch that is over had, and whether it was to be all that the DataLoader has."""
    whole = True
    with suppress(TypeError, NotImplementedError):  # a DataLoader without a length
        loader: Any = state.dataloader
        whole = state.dataloader_len is None or int(state.dataloader_len) >= len(loader)
    return int(state.previous_timestamp.batch_in_epoch), whole  # pyright: ignore[reportOptionalMemberAccess]


def _take(watch: _Watch, state: State) -> npt.NDArray[np.int64]:
    """Hold the counts of the batch that was fetched last; returns its sample ids."""
    batch, in_epoch = int(state.timestamp.batch), int(state.timestamp.batch_in_epoch)
    known = watch.tap.take(state.batch)
    if known is None:
        raise DatasetError(
            "the ids of a batch are missing: its samples did not come one by one from the dataset"
        )
    watch.shards.put(batch, known.ids)
    if watch.losses:
        watch.losses.put(batch, None if watch.first_position is None else known.labels)
    if watch.first_position is not None:
        watch.monitor.put(known.counts, known.tokens, known.order)
    else:
        watch.monitor.put(np.zeros_like(known.counts), np.zeros_like(known.counts))
    if watch.integrity:
        here = Batch(known.ids, known.spots, known.order, known.digest, batch, in_epoch, watch.tap.number)
        watch.integrity.put(here, watch.tap.passes)
    return known.ids


def _loss(state: State) -> float:
    """Mean loss of the batch over all ranks, as Composer logs it."""
    losses: Any = state.total_loss_dict
    return float(losses.get("loss/train/total", math.nan)) if losses else math.nan


def _warn(error: Exception) -> None:
    log.warning(
        "mixmon is off, training goes on: %s",
        error,
        exc_info=None if isinstance(error, MixmonError) else error,
    )
