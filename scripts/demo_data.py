"""Write the demo's bilingual corpus: English first, then Japanese, as people merge datasets.

The text is the Japanese message catalogue of Mercurial, read from the installed package: the original
messages are the English half, their translations the Japanese one. The catalogue is part of Mercurial
and under GPL-2.0-or-later; what is written here from it stays on this machine.

    python scripts/demo_data.py runs/demo/data [--sequences 8192] [--shards 32]

writes ``tokenizer.json``, ``en/`` and ``ja/`` (MDS shards of one column, ``input_ids``) and an ``index.json``
over both. Every sequence holds 64 tokens. The result depends on the arguments only and is not written twice.
"""

from __future__ import annotations

import argparse
import gettext
import hashlib
import importlib.metadata
import importlib.resources
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from streaming import MDSWriter
from streaming.base.util import merge_index
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SEQUENCE_LENGTH = 64
VOCABULARY_SIZE = 4096
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MARKER = "done.json"


def read_catalogue() -> dict[str, list[str]]:
    """Read Mercurial's translated messages: ``{"en": originals, "ja": translations}``, in catalogue order."""
    path = importlib.resources.files("mercurial") / "locale" / "ja" / "LC_MESSAGES" / "hg.mo"
    with path.open("rb") as file:
        # gettext looks messages up and cannot list them: hence the private attribute.
        catalogue: dict[str, str] = gettext.GNUTranslations(file)._catalog  # pyright: ignore
    # Left out: the header (empty original), plural forms (tuples), and what was never translated.
    pairs = [(en, ja) for en, ja in catalogue.items() if isinstance(en, str) and en and not ja.isascii()]
    return {"en": [en for en, _ in pairs], "ja": [ja for _, ja in pairs]}


def train_tokenizer(texts: dict[str, list[str]]) -> Tokenizer:
    """Train a byte-level BPE on both languages together."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for part in texts.values() for text in part), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, root: Path) -> None:
    """Write ``tokenizer.json``, and beside it what ``AutoTokenizer.from_pretrained`` asks for."""
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    special: dict[str, Any] = dict(zip(names, SPECIAL_TOKENS, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(root)


def pack(messages: list[list[int]], separator: int, count: int, seed: int) -> Iterator[np.ndarray]:
    """Cut ``count`` sequences from the messages, joined in a new random order each time they run out.

    Yields:
        int64 arrays of shape (SEQUENCE_LENGTH,).
    """
    rng = np.random.default_rng(seed)
    stream: list[int] = []
    for _ in range(count):
        while len(stream) < SEQUENCE_LENGTH:
            for index in rng.permutation(len(messages)):
                stream += [*messages[index], separator]
        yield np.array(stream[:SEQUENCE_LENGTH], np.int64)
        del stream[:SEQUENCE_LENGTH]


def write_shards(out: Path, sequences: Iterator[np.ndarray], per_shard: int) -> None:
    """Write the sequences as MDS shards of ``per_shard`` samples each."""
    columns = {"input_ids": f"ndarray:int64:{SEQUENCE_LENGTH}"}
    # A sample takes its tokens and a uint32 offset. The room for one more is for the shard's header, which
    # takes part of it.
    size_limit = (per_shard + 1) * (8 * SEQUENCE_LENGTH + 4)
    with MDSWriter(out=str(out), columns=columns, size_limit=size_limit) as writer:
        for sequence in sequences:
            writer.write({"input_ids": sequence})


def write_corpus(root: Path, sequences: int, shards: int) -> None:
    """Write tokenizer, shards and index under ``root``."""
    texts = read_catalogue()
    tokenizer = train_tokenizer(texts)
    save_tokenizer(tokenizer, root)
    separator = tokenizer.token_to_id("[SEP]")
    for seed, (language, messages) in enumerate(texts.items()):
        ids = [encoding.ids for encoding in tokenizer.encode_batch(messages)]
        packed = pack(ids, separator, sequences // 2, seed)
        write_shards(root / language, packed, sequences // shards)
        print(f"{language}: {len(messages):,} messages, {sum(map(len, ids)):,} tokens; {shards // 2} shards")
    merge_index([str(root / language / "index.json") for language in texts], str(root))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--sequences", type=int, default=8192)
    parser.add_argument("--shards", type=int, default=32)
    args = parser.parse_args(argv)
    if args.shards < 2 or args.shards % 2 or args.sequences % args.shards:
        parser.error("--shards must be even and divide --sequences")

    made_of = {
        "sequences": args.sequences,
        "shards": args.shards,
        "mercurial": importlib.metadata.version("mercurial"),
        "tokenizers": importlib.metadata.version("tokenizers"),
        "script": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
    }
    marker = args.root / MARKER
    if marker.exists() and json.loads(marker.read_text()) == made_of:
        print(f"{args.root} is up to date")
        return
    print("The corpus is Mercurial's message catalogue (GPL-2.0-or-later), read from the installed package.")
    # Written beside its place and moved there whole: an interrupted run leaves nothing half written.
    partial = args.root.with_name(f"{args.root.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    # merge_index announces its temporary folder as a warning
    logging.getLogger("streaming.base.util").setLevel(logging.ERROR)
    write_corpus(partial, args.sequences, args.shards)
    (partial / MARKER).write_text(json.dumps(made_of, indent=2))
    if marker.exists():
        shutil.rmtree(args.root)
    partial.rename(args.root)


if __name__ == "__main__":
    main()
