"""A section of a recipe, frozen, as attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from runner.tools.files import normal

Schema = Mapping[str, Any]  # a JSON schema
Section = Mapping[str, Any]  # a recipe's section, or a part of one, as plain values


class BrokenSetting(Exception):
    """A rule read a setting that the schema has already refused, so the rule does not apply."""


BROKEN = object()  # replaces a value that the schema refused


class Settings(Mapping[str, Any]):
    """A section of a recipe: frozen, read as `recipe.train.epochs`. An optional setting that is
    absent is None. The schema is the only list of settings; reading an unknown one raises
    AttributeError."""

    __slots__ = ("__dict__", "_known", "_values")
    # The schema of each setting that the section may have.
    _known: Schema
    _values: Section

    def __init__(self, values: Section, schema: Schema) -> None:
        properties = schema.get("properties", {})
        self._hold(
            {key: _freeze(value, properties.get(key, {})) for key, value in values.items()},
            properties,
        )

    def __repr__(self) -> str:
        return f"Settings({self._values!r})"

    def __deepcopy__(self, memo: object) -> Self:
        return self  # it is frozen

    def _hold(self, values: Section, properties: Schema) -> None:
        object.__setattr__(self, "_known", properties)
        object.__setattr__(self, "_values", values)
        # Settings are plain attributes, because a check reads thousands of them; __getattr__
        # handles the rest.
        attributes = {**dict.fromkeys(properties), **values}
        broken = [key for key, value in values.items() if value is BROKEN]
        for key in (*_NOT_SETTINGS.intersection(attributes), *broken):
            del attributes[key]
        self.__dict__.update(attributes)

    if not TYPE_CHECKING:  # sections.pyi has the settings of each section

        def __getattr__(self, key: str) -> Any:
            if key in self._values:
                return self[key]
            raise AttributeError(f"the schema has no setting `{key}`; it has {sorted(self._known)}")

    def __setattr__(self, key: str, value: object) -> None:
        raise AttributeError("a recipe is frozen")

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if value is BROKEN:
            raise BrokenSetting(key)
        return value

    # Mapping's own methods call the one above and catch its KeyError.
    def __contains__(self, key: object) -> bool:
        return key in self._values

    def get(self, key: str, default: object = None) -> Any:
        # Without a call of another function, because a check reads thousands of settings.
        value = self._values[key] if key in self._values else default  # noqa: SIM401
        if value is BROKEN:
            raise BrokenSetting(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def knows(self, key: str) -> bool:
        """Whether the schema has a setting of this name here, set or not."""
        return key in self._known

    def with_own(self, set_settings: Settings) -> Settings:
        """This section with one of its `sets` on top. A set that has one of the settings of a form
        inherits none."""
        form = ("form", "question", "answer")
        if any(name in set_settings for name in form):
            hidden = {"sets", *form}
        else:
            hidden = {"sets"}
        if self.knows("question"):
            defaults = {"form": "auto"}
        else:
            defaults = {}
        kept = {name: value for name, value in self._values.items() if name not in hidden}
        merged = Settings.__new__(Settings)
        merged._hold(
            {**defaults, **kept, **set_settings._values}, {**self._known, **set_settings._known}
        )
        return merged

    def changed(self, **values: object) -> Self:
        """This section with other values of some settings, as plain values."""
        return type(self)({**self.plain(), **values}, {"properties": self._known})

    def sections(self) -> dict[str, Settings]:
        """Its sections by name, without those that the schema refused."""
        return {name: value for name, value in self._values.items() if type(value) is Settings}

    @property
    def for_axolotl(self) -> dict[str, Any]:
        """The settings that Axolotl gets with the same value (`x-axolotl` in the schema), by
        Axolotl's names."""
        axolotl_names = ((name, part.get("x-axolotl")) for name, part in self._known.items())
        return {
            key: self[name] for name, key in axolotl_names if key and self.get(name) is not None
        }

    def making(self, key: str) -> list[str]:
        """The settings, set or not, that determine one of Axolotl's: by the same name, unchanged
        (`x-axolotl`), or computed (`x-axolotl-makes`)."""
        return [
            name
            for name, part in self._known.items()
            if key in (name, part.get("x-axolotl"), *part.get("x-axolotl-makes", ()))
        ]

    def plain(self) -> dict[str, Any]:
        """The section as plain dicts and lists. Raises BrokenSetting if the schema has refused one
        of its values."""
        return {key: _thaw(value) for key, value in self._values.items()}


# Attributes that are not settings. A setting of the same name in an open section is read by `[…]`
# alone.
_NOT_SETTINGS = frozenset(dir(Settings))


def _freeze(value: object, schema: Schema) -> Any:
    if isinstance(value, dict):
        # A section that the schema leaves open has the settings that the recipe writes.
        return Settings(
            value, schema if "properties" in schema else {"properties": {key: {} for key in value}}
        )
    if isinstance(value, str) and schema.get("x-folder"):
        return normal(value)
    if isinstance(value, list):
        if any(item is BROKEN for item in value):
            return BROKEN  # a list with a broken item is broken as a whole
        return tuple(_freeze(item, schema.get("items", {})) for item in value)
    return value


def _thaw(value: object) -> Any:
    if value is BROKEN:
        raise BrokenSetting
    # For an abstract class, such as that of sections, Python's instance check is slow.
    if type(value) is Settings:
        return value.plain()
    if isinstance(value, tuple):
        return [_thaw(item) for item in value]
    return value
