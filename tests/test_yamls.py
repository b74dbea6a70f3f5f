"""Every YAML that is shipped: run by other tests, or at least read with all of its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from streaming import MDSWriter

from composer_mixmon.audit import Options, audit_yaml
from composer_mixmon.config import MonitorConfig

YAMLS = sorted((Path(__file__).parents[1] / "yamls").glob("*.yaml"))


def read(path: Path) -> dict[str, Any]:
    config = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(config, dict)
    return {str(key): value for key, value in config.items()}


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_the_monitors_settings_are_valid(path: Path) -> None:
    """What stands under callbacks.mixmon is understood; one that goes over another YAML may have none."""
    config = read(path)
    if "callbacks" in config:
        MonitorConfig.read(**config["callbacks"]["mixmon"])
    else:
        assert path.stem.startswith("scenario-")


def write(folder: Path) -> None:
    with MDSWriter(out=str(folder), columns={"input_ids": "bytes"}, size_limit=1 << 10) as writer:
        for index in range(300):
            writer.write({"input_ids": bytes(index % 7 + 1)})


def test_modernbert_tiny_is_audited(tmp_path: Path) -> None:
    """Its streams, labels and shuffle are found in a YAML of ModernBERT's form."""
    for language in ("ja", "en"):
        write(tmp_path / language)
    config = OmegaConf.load(next(path for path in YAMLS if path.stem == "modernbert-tiny"))
    config["data"] = str(tmp_path)
    path = tmp_path / "train.yaml"
    OmegaConf.save(config, path, resolve=True)
    found = audit_yaml(str(path), Options())
    assert found.plan.names == ("ja", "en")
    assert found.plan.settings.shuffle_algo == "py1e"
    assert found.plan.global_batch == 16


def test_modernbert_base_has_the_papers_figures() -> None:
    """Layers, widths, batch, masking, duration and learning rate of ModernBERT-base (Warner et al. 2024)."""
    config = read(next(path for path in YAMLS if path.stem == "modernbert-base"))
    model = config["model"]["model_config"]
    assert (model["num_hidden_layers"], model["hidden_size"], model["intermediate_size"]) == (22, 768, 1152)
    assert (model["sliding_window"], model["global_attn_every_n_layers"]) == (128, 3)
    assert config["global_train_batch_size"] == 4608
    assert config["train_loader"]["dataset"]["mlm_probability"] == 0.3
    assert (config["optimizer"]["lr"], config["optimizer"]["weight_decay"]) == (8e-4, 1e-5)
    assert config["max_duration"] == "1_719_000_000_000tok"
