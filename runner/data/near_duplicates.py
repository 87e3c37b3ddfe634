"""How datatrove finds near duplicates, for rows and for text that is cleaned."""

from __future__ import annotations

from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.utils.hashing import HashConfig

# SHA-1, because datatrove 0.10.1's other choice hands text to xxhash, whose version 4 takes bytes alone.
HASH = HashConfig(precision=64, hash_fc="sha1")


# 14 buckets of 8 hashes over 5-grams find pairs that share about 72 % of them and more (datatrove's own defaults).
NEAR = MinhashConfig(hash_config=HASH)


def quiet() -> None:
    """datatrove logs to the terminal; what a person needs is in the report, and each task's log is a file."""
    from loguru import logger

    logger.remove()
