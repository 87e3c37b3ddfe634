"""The parts of the official Kubernetes client that every command needs, without the rest of it.

Its own `__init__` imports the models of all kinds of Kubernetes, and its reader of kubeconfigs what only logins of former
times need (36.0.3): together more than half of the time of `recipe status`.
"""

import importlib.util
import os
import pkgutil
import sys
from functools import cache
from types import ModuleType
from typing import Any

from runner.tools import packaged
from runner.tools.problem import Stop

ROOT = "kubernetes"
# What stands in for a package while our parts are imported: each imports these at its top, and uses them where a kubeconfig
# names an `auth-provider` (gcp, oidc) or a proxy.
LATER = {
    "requests": ("utils",),
    "requests_oauthlib": (),
    "oauthlib": ("oauth2",),
    "google": ("auth", "auth.transport", "auth.transport.requests"),
}


class Later(ModuleType):
    """A module, or a function or class in one, that is imported when it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        whole = f"{self.__name__}.{name}"
        # While it stands in for the module, an importer asks for the name alone.
        return Later(whole) if sys.modules.get(self.__name__) is self else pkgutil.resolve_name(whole)

    def __call__(self, *given: Any, **how: Any) -> Any:
        return pkgutil.resolve_name(self.__name__)(*given, **how)


@cache
def client_parts() -> tuple[Any, Any, Any]:
    """The client's modules with its reader of kubeconfigs, its configuration, and its pool of connections. Whoever imports the
    client itself gets the whole, as ever. Raises Stop where it is not installed."""
    found = importlib.util.find_spec(ROOT)
    if found is None or not found.submodule_search_locations:
        raise Stop("Talking to a cluster needs a package that is not installed.", packaged.install("cluster"))
    home = found.submodule_search_locations[0]
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == ROOT}
    later = [
        name
        for package, parts in LATER.items()
        if package not in sys.modules
        for name in (package, *(f"{package}.{part}" for part in parts))
    ]
    for name in before:
        del sys.modules[name]
    sys.modules.update({name: Later(name) for name in later})
    try:
        for name in (ROOT, f"{ROOT}.client", f"{ROOT}.config"):
            bare = sys.modules[name] = ModuleType(name)
            bare.__path__ = [os.path.join(home, *name.split(".")[1:])]
        client = importlib.import_module(f"{ROOT}.client.configuration")
        rest = importlib.import_module(f"{ROOT}.client.rest")
        # The names that its reader of kubeconfigs imports; the second one it uses only to make a client that we do not have.
        vars(sys.modules[f"{ROOT}.client"]).update(Configuration=client.Configuration, ApiClient=None)
        return importlib.import_module(f"{ROOT}.config.kube_config"), client, rest
    finally:
        for name in [*later, *(name for name in sys.modules if name.partition(".")[0] == ROOT)]:
            del sys.modules[name]
        sys.modules.update(before)
