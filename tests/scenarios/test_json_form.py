"""What a plan carries for those who prepare data: each reads back what the translation has made."""

from __future__ import annotations

import importlib
import inspect
import json
from dataclasses import asdict, fields
from typing import get_type_hints

import pytest
from pydantic import TypeAdapter

from runner import data, parts
from runner.check.validate import load
from runner.data.data_sets import stated
from runner.parts.pretrain import architecture, work
from runner.scenarios import place, translate
from tests.conftest import STARTERS

MODULES = data.PREPARERS | parts.table("preparers")


def readers(stage):
    """The functions that read a stage's settings, each with the JSON that it is given."""
    if stage.data:
        yield importlib.import_module(MODULES[stage.data["kind"]]).prepare, stage.data
    for function, kind in ((work.text, architecture.Data), (work.init, architecture.FirstWeights)):
        own = {field.name for field in fields(kind)}
        if own <= stage.config.keys():
            # What such a stage has besides is not for them.
            yield function, {name: value for name, value in stage.config.items() if name in own}


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_settings_are_read_back_as_they_were_made(path):
    recipe, _, _ = load(path)
    found = [
        reader for stage in translate(recipe, place(recipe)).stages for reader in readers(stage)
    ]
    assert found
    for function, settings in found:
        kind = get_type_hints(function)[next(iter(inspect.signature(function).parameters))]
        read = TypeAdapter(kind).validate_json(json.dumps(settings))
        assert isinstance(read, kind) and type(read).__dataclass_params__.frozen
        assert asdict(read, dict_factory=stated) == settings
