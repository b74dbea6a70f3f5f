"""Masked-LM pretraining of a small ModernBERT on an MDS dataset, configured as ModernBERT's own main.py is.

    python scripts/pretrain.py yamls/demo-ordered.yaml [more.yaml ...] [key.sub=value ...]

The YAML names callbacks, loggers, optimizer and scheduler; further ones and dotted arguments override it, in
turn. It runs on CPU or GPU, on one process or under the ``composer`` launcher. mixmon is one line here, in
:func:`build_callback`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import torch
from composer import Callback, Logger, State, Trainer
from composer.callbacks import LRMonitor, SpeedMonitor
from composer.loggers import LoggerDestination, WandBLogger
from composer.models import HuggingFaceModel
from composer.optim import ComposerScheduler, DecoupledAdamW, LinearWithWarmupScheduler
from composer.utils import dist, reproducibility
from omegaconf import DictConfig, OmegaConf
from streaming import StreamingDataLoader, StreamingDataset
from transformers import (
    DataCollatorForLanguageModeling,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
)

from composer_mixmon import MixMon


class JsonlLogger(LoggerDestination):
    """Write every metric to a local file, one JSON object a line: ``{"batch": 4, "loss/train/total": 7.9}``.

    Args:
        path: The file, written anew by rank 0.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.file = None

    def init(self, state: State, logger: Logger) -> None:
        """Open the file."""
        del state, logger
        if dist.get_global_rank() == 0:
            self.file = self.path.open("w", buffering=1, encoding="utf-8")

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Append a line."""
        if self.file:
            print(
                json.dumps({"batch": step} | {key: float(value) for key, value in metrics.items()}),
                file=self.file,
            )

    def post_close(self) -> None:
        """Close the file."""
        if self.file:
            self.file.close()


def build_callback(name: str, kwargs: dict[str, Any]) -> Callback:
    if name == "mixmon":
        return MixMon(**kwargs)
    if name == "lr_monitor":
        return LRMonitor()
    if name == "speed_monitor":
        return SpeedMonitor(**kwargs)
    raise ValueError(f"callbacks.{name}: unknown; write mixmon, lr_monitor or speed_monitor")


def build_logger(name: str, kwargs: dict[str, Any]) -> LoggerDestination:
    if name == "wandb":
        return WandBLogger(**kwargs)
    if name == "jsonl":
        return JsonlLogger(**kwargs)
    raise ValueError(f"loggers.{name}: unknown; write wandb or jsonl")


def build_scheduler(cfg: DictConfig) -> ComposerScheduler:
    if cfg.name == "linear_decay_with_warmup":
        return LinearWithWarmupScheduler(t_warmup=cfg.t_warmup, alpha_f=cfg.alpha_f)
    raise ValueError(f"scheduler.name: {cfg.name!r}: unknown; write linear_decay_with_warmup")


def build_optimizer(cfg: DictConfig, model: torch.nn.Module) -> torch.optim.Optimizer:
    if cfg.name == "decoupled_adamw":
        betas = tuple(cfg.betas)
        return DecoupledAdamW(
            model.parameters(), lr=cfg.lr, betas=betas, eps=cfg.eps, weight_decay=cfg.weight_decay
        )
    raise ValueError(f"optimizer.name: {cfg.name!r}: unknown; write decoupled_adamw")


def build_tokenizer(file: str) -> PreTrainedTokenizerFast:
    if not Path(file).is_file():
        raise FileNotFoundError(
            f"tokenizer_file: {file!r}: no such file; write the data first (scripts/demo_data.py)"
        )
    return PreTrainedTokenizerFast(
        tokenizer_file=file,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def build_model(cfg: DictConfig, tokenizer: PreTrainedTokenizerFast) -> HuggingFaceModel:
    if cfg.name != "modernbert":
        raise ValueError(f"model.name: {cfg.name!r}: unknown; write modernbert")
    special = {
        "pad_token_id": "[PAD]",
        "bos_token_id": "[CLS]",
        "cls_token_id": "[CLS]",
        "eos_token_id": "[SEP]",
        "sep_token_id": "[SEP]",
    }
    ids: dict[str, Any] = {name: tokenizer.convert_tokens_to_ids(token) for name, token in special.items()}
    config = ModernBertConfig(vocab_size=len(tokenizer), **ids, **as_dict(cfg.model_config))
    return HuggingFaceModel(ModernBertForMaskedLM(config), tokenizer)


def build_dataloader(
    cfg: DictConfig, tokenizer: PreTrainedTokenizerFast, batch_size: int
) -> StreamingDataLoader:
    """Build the training loader; ``cfg.dataset`` holds StreamingDataset's own arguments."""
    if cfg.name != "text":
        raise ValueError(f"train_loader.name: {cfg.name!r}: unknown; write text")
    return StreamingDataLoader(
        StreamingDataset(batch_size=batch_size, **as_dict(cfg.dataset)),
        collate_fn=DataCollatorForLanguageModeling(tokenizer, mlm_probability=cfg.mlm_probability),
        batch_size=batch_size,
        num_workers=cfg.num_workers,
        drop_last=cfg.drop_last,
    )


def build_trainer(cfg: DictConfig) -> Trainer:
    """Build model, data and Trainer from the YAML. Raises ``ValueError`` on a name it does not know."""
    reproducibility.seed_all(cfg.seed)
    batch_size, rest = divmod(cfg.global_train_batch_size, dist.get_world_size())
    if rest:
        raise ValueError(
            f"global_train_batch_size: {cfg.global_train_batch_size}: write a multiple of the "
            f"{dist.get_world_size()} processes"
        )
    tokenizer = build_tokenizer(cfg.tokenizer_file)
    model = build_model(cfg.model, tokenizer)
    return Trainer(
        run_name=cfg.run_name,
        seed=cfg.seed,
        model=model,
        train_dataloader=build_dataloader(cfg.train_loader, tokenizer, batch_size),
        optimizers=build_optimizer(cfg.optimizer, model),
        schedulers=build_scheduler(cfg.scheduler),
        max_duration=cfg.max_duration,
        precision=cfg.precision,
        device=cfg.get("device"),
        device_train_microbatch_size=cfg.device_train_microbatch_size,
        callbacks=[build_callback(name, as_dict(kwargs)) for name, kwargs in cfg.callbacks.items()],
        loggers=[build_logger(name, as_dict(kwargs)) for name, kwargs in cfg.loggers.items()],
        progress_bar=cfg.progress_bar,
        save_folder=cfg.get("save_folder"),
        save_interval=cfg.get("save_interval", "1ep"),
        save_num_checkpoints_to_keep=cfg.get("save_num_checkpoints_to_keep", -1),
        save_overwrite=cfg.get("save_overwrite", False),
        load_path=cfg.get("load_path"),
        load_ignore_keys=cfg.get("load_ignore_keys"),
        spin_dataloaders=cfg.get("spin_dataloaders", True),
    )


def as_dict(cfg: DictConfig) -> dict[str, Any]:
    """Resolve a part of the YAML to plain Python values."""
    return cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True))


def load_config(path: str | Path, overrides: list[str]) -> DictConfig:
    """Read the YAML and apply further ones and dotted overrides, in turn.

    ``callbacks.mixmon=null`` takes a callback or logger out.
    """
    parts = [
        OmegaConf.load(part) if part.endswith(".yaml") and "=" not in part else OmegaConf.from_dotlist([part])
        for part in overrides
    ]
    cfg: Any = OmegaConf.merge(OmegaConf.load(path), *parts)
    for group in ("callbacks", "loggers"):
        for name in [name for name, kwargs in cfg[group].items() if kwargs is None]:
            del cfg[group][name]
    return cfg


def main(args: list[str]) -> None:
    if not args or args[0].startswith("-"):
        sys.exit(__doc__)
    cfg = load_config(args[0], args[1:])
    Path(cfg.run_folder).mkdir(parents=True, exist_ok=True)
    trainer = build_trainer(cfg)
    OmegaConf.save(cfg, Path(cfg.run_folder) / "config.yaml", resolve=True)
    trainer.logger.log_hyperparameters(as_dict(cfg))
    trainer.fit()
    trainer.close()
    print(f"{cfg.run_name}: ended after batch {trainer.state.timestamp.batch.value} of {cfg.max_duration}")


if __name__ == "__main__":
    main(sys.argv[1:])
