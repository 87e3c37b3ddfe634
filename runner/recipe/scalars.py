"""Scalars as YAML 1.2 reads them: `2e-5` is a number and `yes` is text, as editors and JSON Schema validators have it."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

# YAML 1.2.2, section 10.3.2 (core schema).
_NULL = re.compile(r"(?:null|Null|NULL|~|)\Z")
_TRUE = re.compile(r"(?:true|True|TRUE)\Z")
_FALSE = re.compile(r"(?:false|False|FALSE)\Z")
_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCT = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_INF = re.compile(r"([-+]?)\.(?:inf|Inf|INF)\Z")
_NAN = re.compile(r"\.(?:nan|NaN|NAN)\Z")
# What all of these begin with; most texts begin otherwise.
_NOT_ONLY_TEXT = {"", *"nNtTfF~.+-0123456789"}


@lru_cache(maxsize=4096)
def scalar(text: str) -> Any:
    """What unquoted `text` means under YAML 1.2's core schema: None, bool, int, float or str."""
    if text[:1] not in _NOT_ONLY_TEXT:
        return text
    if _NULL.match(text):
        return None
    if _TRUE.match(text):
        return True
    if _FALSE.match(text):
        return False
    if _INT.match(text):
        # int() refuses more than 4,300 digits; nobody means such a number.
        return int(text) if len(text) < 100 else float("inf")
    if _OCT.match(text):
        return int(text, 8) if len(text) < 100 else float("inf")
    if _HEX.match(text):
        return int(text, 16) if len(text) < 100 else float("inf")
    if _FLOAT.match(text):
        return float(text)
    if sign := _INF.match(text):
        return -math.inf if sign[1] == "-" else math.inf
    return math.nan if _NAN.match(text) else text
