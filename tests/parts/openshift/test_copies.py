"""A copy of every starter, in a namespace of one's own: the page about clusters, followed line by
line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.commands import cli
from runner.parts.jobs.kubernetes import IMAGE_REGISTRY
from runner.parts.openshift.client import address
from runner.recipe.reading import read
from runner.tools import packaged
from tests.conftest import ROOT
from tests.parts.openshift.conftest import in_process

# That of this machine's own model cannot be for a cluster.
STARTERS = [
    path.stem for path in packaged.starters() if "base: small" not in path.read_text("utf-8")
]
# What needs a browser, or pods at work; tests of the flows on a cluster and of pods play both.
AT_WORK = ("logs", "open", "fetch", "ask")


def lines() -> Iterator[list[str]]:
    """Every line that the page tells its reader to type."""
    page = (ROOT / "docs/cluster.md").read_text("utf-8")
    for block in re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if words := shlex.split(line, comments=True):
                yield words


# The image that a starter has of somebody else, for code that comes by git: `site` writes no build,
# and a copy needs a commit.
STOCK = {"resnet": {read(ROOT / "recipes/resnet.yaml").data["openshift"]["image"]}}
COMMIT = ["--set", f"image.code_from_git.commit={'c0ffee' * 6}c0ff"]


class Oc:
    """`oc` of somebody who may do everything in one namespace and nothing elsewhere. images: what
    builds have made."""

    def __init__(self, site) -> None:
        self.site, self.images = site, set()
        self.applied: dict[tuple[str, str], dict[str, Any]] = {}

    def __call__(self, verb: str, *words: str) -> None:
        if verb == "apply":
            folder = Path(words[words.index("-k") + 1])
            for file in yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))[
                "resources"
            ]:
                for one in yaml.safe_load_all((folder / file).read_text("utf-8")):
                    meta = one["metadata"]
                    assert meta.get("namespace", meta["name"]) == self.site.namespace, (
                        f"{file}: forbidden"
                    )
                    self.applied[one["kind"], meta["name"]] = one
        elif verb == "create" and words[:2] == ("secret", "generic"):
            keys = dict(
                word.partition("=")[2].split("=", 1) for word in words if word.startswith("--from-")
            )
            meta = {"name": words[2], "namespace": self.site.namespace}
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": keys}
            self.site.cluster.request("POST", address("Secret", self.site.namespace), body=secret)
        elif verb == "create":
            for one in yaml.safe_load_all(Path(words[words.index("-f") + 1]).read_text("utf-8")):
                assert one["metadata"]["namespace"] == self.site.namespace
                self.site.cluster.apply(one)
        elif verb == "start-build":
            assert words[words.index("--namespace") + 1] == self.site.namespace
            assert ("BuildConfig", words[0]) in self.applied, f'buildconfigs "{words[0]}" not found'
            tag = self.applied["BuildConfig", words[0]]["spec"]["output"]["to"]["name"]
            assert ("ImageStream", tag.partition(":")[0]) in self.applied
            self.images.add(f"{IMAGE_REGISTRY}/{self.site.namespace}/{tag}")
        else:
            assert (verb, *words[:1]) in {
                ("login", words[0]),
                ("project", self.site.namespace),
                ("get", "nodes"),
            }


def images(value: Any) -> Iterator[str]:
    """Every image that something names for a container."""
    for key, item in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        if key == "image" and isinstance(item, str):
            yield item
        yield from images(item)


@in_process
@pytest.mark.parametrize("starter", STARTERS)
def test_a_copy_of_every_starter_follows_the_page_about_clusters_line_by_line(
    site, capsys, starter
):
    oc, sent = Oc(site), []
    stock = STOCK.get(starter, set())

    def ended_at_once(plural: str, space: str, one: dict[str, Any]) -> None:
        sent.append((plural, one))
        if plural == "jobs":
            one["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}

    site.api.watchers.append(ended_at_once)
    did = []
    for program, *words in lines():
        words = [
            word.replace("my-namespace", site.namespace) for word in words if word != "--follow"
        ]
        if program == "oc":
            if words[0] != "start-build" or not stock:
                oc(*words)
        elif words[0] not in AT_WORK:
            words = [
                starter if before == "--from" else word
                for before, word in zip(["", *words], words, strict=False)
            ]
            words += COMMIT if stock and words[0] == "new" else []
            assert cli._code(words) == 0, (
                f"recipe {shlex.join(words)}\n{''.join(capsys.readouterr())}"
            )
        did.append(words[0])
    assert {
        "new",
        "check",
        "plan",
        "site",
        "apply",
        "start-build",
        "submit",
        "status",
        "stop",
    } <= set(did)
    named = {image for _, one in sent for image in images(one)}
    assert named and named <= (oc.images | stock), "every pod finds its image"
    assert set(images([*oc.applied.values()])) == (oc.images | stock)
    shown = capsys.readouterr().out
    assert (f"oc start-build recipe-runner --namespace {site.namespace} --from-dir=." in shown) == (
        not stock
    )
    assert "lyric-professor" not in Path("my-demo.yaml").read_text("utf-8")
