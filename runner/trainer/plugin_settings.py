"""The plug-in's own settings in Axolotl's config."""

from axolotl.utils.dict import DictDefault

from runner.trainer.settings import RunSettings


def run_settings(cfg: DictDefault) -> RunSettings:
    if hasattr(cfg.recipe_runner, "to_dict"):
        plain_settings = cfg.recipe_runner.to_dict()
    else:
        plain_settings = cfg.recipe_runner
    return RunSettings.read(plain_settings)
