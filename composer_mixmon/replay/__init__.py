"""Replay: settings to order to counts, without opening a shard."""
