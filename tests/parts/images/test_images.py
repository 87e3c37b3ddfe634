"""Images: the network, what is done to images, reading them safely, and code by git."""

from __future__ import annotations

import ast
import io
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from runner import parts
from runner.check.validate import load
from runner.commands.cli import _code as command
from runner.parts.images import network, training, translation
from runner.parts.images.data import SPLITS
from runner.parts.jobs import kubernetes, podspec
from runner.parts.proof import hooks, judging
from runner.recipe.overrides import from_options
from runner.scenarios import prepare, translate
from runner.tools.problem import Stop
from runner.trainer.records import Summary
from tests import servers, shapes
from tests.conftest import ON_CLUSTER, ROOT, setting_of
from tests.rendering import render

RECIPE = ROOT / "recipes" / "resnet.yaml"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CODE = (
    "image.code_from_git.url=https://github.com/my-team/code.git",
    f'image.code_from_git.commit="{COMMIT}"',
)


def plan_of(path, *sets):
    recipe, _, _ = load(path, from_options(sets))
    return translate(recipe, kubernetes.place(recipe))


def manifest(path, *sets):
    files = {artifact.path: artifact.text for artifact in render(plan_of(path, *sets))}
    return yaml.safe_load(
        next(text for name, text in files.items() if name.endswith("pytorchjob.yaml"))
    )


def pod(path, *sets):
    return manifest(path, *sets)["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]


def wanted(path, **other):
    return {
        "kind": "images", "hub": None, "revision": "main", "subset": None, "split": "train", "test_split": None,
        "path": str(path), "image_column": "img", "label_column": "label", "image_size": 32, "classes": 10,
        "validation_share": 0.1, "seed": 42, **other,
    }  # fmt: skip


# The recipe


@pytest.mark.parametrize(
    "names", [("cats", "dogs", "owls"), ("train/cats", "train/dogs", "train/owls", "test/cats")]
)
def test_a_folder_with_other_classes_than_the_recipe_says_is_told_by_check(
    tmp_path, golden_message, names
):
    for name in names:
        (tmp_path / "pets" / name).mkdir(parents=True)
    own = ("data.hub=", "data.test_split=", f"data.path={tmp_path / 'pets'}")
    with pytest.raises(Stop) as stop:
        load(RECIPE, from_options(own))
    (problem,) = stop.value.problems
    assert setting_of(problem) == "classes"
    golden_message(problem)
    assert load(RECIPE, from_options([*own, "model.classes=3"]))[0].model.classes == 3


def test_a_folder_without_classes_is_told_by_check(tmp_path):
    (tmp_path / "cats").mkdir()
    with pytest.raises(Stop) as stop:
        load(RECIPE, from_options(["data.hub=", "data.test_split=", f"data.path={tmp_path}"]))
    assert [setting_of(problem) for problem in stop.value.problems] == ["data.path"]


# The network


def test_the_network_is_the_resnet_18_for_small_images():
    model = network.build("resnet18", width=64, classes=10)
    # 11,173,962: the count of the well-known ResNet-18 for CIFAR-10, stem 3×3, ten classes.
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_173_962
    stem = model.resnet.embedder.embedder.convolution
    assert (stem.kernel_size, stem.stride, stem.padding, stem.bias) == (
        (3, 3),
        (1, 1),
        (1, 1),
        None,
    )
    assert not any(isinstance(module, torch.nn.MaxPool2d) for module in model.modules())
    seen = model(torch.zeros(2, 3, 32, 32), output_hidden_states=True)
    assert [state.shape[1:] for state in seen.hidden_states[1:]] == [
        (64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4),
    ]  # fmt: skip
    assert seen.logits.shape == (2, 10)


def test_the_trainer_divides_the_loss_by_the_accumulation_steps():
    assert network.SmallResNetForImageClassification.accepts_loss_kwargs is False


def test_the_loss_is_cross_entropy_over_the_classes():
    model = network.build("resnet18", width=2, classes=10).eval()
    images, labels = torch.randn(4, 3, 32, 32), torch.tensor([1, 2, 3, 9])
    seen = model(images, labels=labels)
    assert torch.allclose(seen.loss, torch.nn.functional.cross_entropy(seen.logits, labels))


# What is done to images


def test_a_random_crop_is_a_window_of_the_padded_image_and_moves():
    torch.manual_seed(0)
    image = torch.arange(1, 3 * 8 * 8 + 1, dtype=torch.uint8).view(1, 3, 8, 8).repeat(64, 1, 1, 1)
    padded = torch.nn.functional.pad(image[0], (2, 2, 2, 2))
    windows = {
        padded[:, top : top + 8, left : left + 8].numpy().tobytes(): (top, left)
        for top in range(5)
        for left in range(5)
    }
    cropped = training.random_crop(image, 2)
    assert cropped.shape == image.shape
    places = {windows[crop.numpy().tobytes()] for crop in cropped}
    assert len(places) > 10


def test_a_random_flip_mirrors_about_half_and_changes_nothing_else():
    torch.manual_seed(0)
    image = torch.arange(3 * 4 * 4, dtype=torch.uint8).view(1, 3, 4, 4).repeat(200, 1, 1, 1)
    flipped = training.random_flip(image)
    mirrored = (flipped == image.flip(-1)).flatten(1).all(1)
    assert (mirrored | (flipped == image).flatten(1).all(1)).all()
    assert 70 < mirrored.sum() < 130


def test_validation_images_are_normalised_and_nothing_more(tmp_path):
    images, labels = shapes.pictures(per_class=3)
    shapes.write(tmp_path / "few.parquet", images, labels)
    report = prepare(wanted(tmp_path / "few.parquet", validation_share=0.34), tmp_path / "data")
    look = {"mean": report.mean, "std": report.std}
    data = training.ImageDataset(tmp_path / "data" / "validation.parquet", 32, **look)
    assert len(data) == 10
    batch = data.__getitems__(list(range(10)))
    again = (
        batch["pixel_values"] * torch.tensor(report.std).view(3, 1, 1)
        + torch.tensor(report.mean).view(3, 1, 1)
    ) * 255
    originals = {image.tobytes(): int(label) for image, label in zip(images, labels, strict=True)}
    for pixels, label in zip(again.round().byte(), batch["labels"], strict=True):
        assert originals[pixels.permute(1, 2, 0).contiguous().numpy().tobytes()] == label


def test_mean_and_deviation_are_those_of_the_training_images(tmp_path):
    shapes.write(tmp_path / "few.parquet", *shapes.pictures(per_class=5))
    report = prepare(wanted(tmp_path / "few.parquet"), tmp_path / "data")
    pixels, _ = training.read(tmp_path / "data" / "train.parquet", 32)
    numbers = pixels.double().permute(1, 0, 2, 3).flatten(1) / 255
    assert report.mean == pytest.approx(numbers.mean(1).tolist(), abs=1e-5)
    assert report.std == pytest.approx(numbers.std(1, unbiased=False).tolist(), abs=1e-5)


def test_a_colour_that_is_the_same_everywhere_is_not_scaled(tmp_path):
    """Else the black borders of cropped images are thousands of times as large as anything in
    them."""
    images, labels = shapes.pictures(per_class=5)
    images = np.array(images)
    images[..., 1] = 10
    shapes.write(tmp_path / "few.parquet", images, labels)
    report = prepare(wanted(tmp_path / "few.parquet"), tmp_path / "data")
    assert report.std[1] == 1.0 and report.mean[1] == pytest.approx(10 / 255, abs=1e-6)
    assert all(0.05 < report.std[colour] < 1 for colour in (0, 2))


# Reading images


def test_the_sample_is_what_its_program_draws():
    import pyarrow.parquet as pq

    table = pq.read_table(shapes.FILE)
    images, labels = shapes.pictures()
    assert table["label"].to_pylist() == labels.tolist()
    for row, image in zip(table["img"].to_pylist(), images, strict=True):
        assert (np.asarray(Image.open(io.BytesIO(row["bytes"])).convert("RGB")) == image).all()


def test_each_kind_of_source_gives_the_same_images(tmp_path):
    images, labels = shapes.pictures(per_class=4)
    shapes.write(tmp_path / "parquet" / "train.parquet", images[10:], labels[10:])
    shapes.write(tmp_path / "parquet" / "test.parquet", images[:10], labels[:10])
    (tmp_path / "binary").mkdir()
    for name, chosen in (
        ("data_batch_1", slice(10, 25)),
        ("data_batch_2", slice(25, 40)),
        ("test_batch", slice(0, 10)),
    ):
        records = [
            bytes([label]) + image.transpose(2, 0, 1).tobytes()
            for image, label in zip(images[chosen], labels[chosen], strict=True)
        ]
        (tmp_path / "binary" / f"{name}.bin").write_bytes(b"".join(records))
    (tmp_path / "binary" / "batches.meta.txt").write_text(
        "\n".join(shapes.CLASSES) + "\n", encoding="utf-8"
    )
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = (
            tmp_path
            / "folders"
            / ("test" if index < 10 else "train")
            / f"{label}-{shapes.CLASSES[label]}"
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index}.png").write_bytes(shapes.png(image))
    seen = {}
    for kind in ("parquet", "binary", "folders"):
        report = prepare(wanted(tmp_path / kind), tmp_path / "out" / kind)
        assert (report.rows_in, report.train_rows, report.validation_rows, report.test_rows) == (
            40,
            20,
            10,
            10,
        )
        splits = [
            training.read(tmp_path / "out" / kind / f"{split}.parquet", 32)
            for split in ("train", "test")
        ]
        seen[kind] = [
            sorted((p.numpy().tobytes(), int(n)) for p, n in zip(*split, strict=True))
            for split in splits
        ]
        assert (
            report.classes[3] == {"parquet": "cross", "binary": "cross", "folders": "3-cross"}[kind]
        )
    assert seen["parquet"] == seen["binary"] == seen["folders"]


def test_a_hub_that_cannot_be_reached_is_said_in_words(tmp_path, monkeypatch, golden_message):
    import datasets

    def load_dataset(*_, **__):
        raise ConnectionError(
            "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded"
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(Stop, match="`uoft-cs/cifar10`") as stop:
        prepare(wanted("") | {"path": None, "hub": "uoft-cs/cifar10"}, tmp_path / "out")
    golden_message(stop.value)


def test_the_hub_gives_the_same_images_with_the_names_of_its_classes(tmp_path, monkeypatch):
    """The library's own kind of dataset, as `uoft-cs/cifar10` is one; only the download is left
    out."""
    import datasets

    images, labels = shapes.pictures(per_class=3)
    asked = []

    def load_dataset(name, subset, split, revision):
        asked.append((name, subset, split, revision))
        chosen = slice(0, 20) if split == "train" else slice(20, 30)
        rows = {
            "img": [Image.fromarray(image) for image in images[chosen]],
            "label": labels[chosen].tolist(),
        }
        kinds = {"img": datasets.Image(), "label": datasets.ClassLabel(names=list(shapes.CLASSES))}
        return datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    report = prepare(
        wanted("") | {"path": None, "hub": "uoft-cs/cifar10", "test_split": "test"},
        tmp_path / "out",
    )
    assert asked == [
        ("uoft-cs/cifar10", None, "train", "main"),
        ("uoft-cs/cifar10", None, "test", "main"),
    ]
    assert (report.train_rows, report.validation_rows, report.test_rows) == (10, 10, 10)
    assert report.classes == list(shapes.CLASSES)
    pixels, numbers = training.read(tmp_path / "out" / "test.parquet", 32)
    known = {image.tobytes(): label for image, label in zip(images[20:], labels[20:], strict=True)}
    for image, number in zip(pixels.permute(0, 2, 3, 1), numbers, strict=True):
        assert known[image.contiguous().numpy().tobytes()] == number


def test_pickles_are_refused_unopened(tmp_path, golden_message):
    (tmp_path / "data_batch_1").write_bytes(b"cos\nsystem\n(S'touch /tmp/opened'\ntR.")
    (tmp_path / "batches.meta").write_bytes(b"")
    with pytest.raises(Stop) as stop:
        prepare(wanted(tmp_path), tmp_path / "out")
    assert "cifar-10-binary.tar.gz" in stop.value.text
    golden_message(stop.value)


def test_what_is_no_image_is_named_and_duplicates_go(tmp_path, golden_message):
    import pyarrow as pa
    import pyarrow.parquet as pq

    images, labels = shapes.pictures(per_class=3)
    rows = [{"bytes": shapes.png(image), "path": None} for image in images]
    rows += [
        rows[0],
        {"bytes": b"GIF89a nonsense", "path": None},
        {"bytes": None, "path": "x.png"},
        rows[1],
    ]
    labels = [*labels.tolist(), 0, 1, 1, 10]
    pq.write_table(pa.table({"img": rows, "label": labels}), tmp_path / "a.parquet")
    report = prepare(wanted(tmp_path / "a.parquet"), tmp_path / "out")
    assert report.rows_in == 34 and report.duplicates == 1
    assert [number for number, _ in report.bad_lines] == [32, 33, 34]
    golden_message("\n".join(reason for _, reason in report.bad_lines))
    assert report.train_rows + report.validation_rows == 30


def in_both(folder, shared: int):
    """Training images, and a test that has so many of them among its own; the images of the
    test."""
    images, labels = shapes.pictures(per_class=30)
    test = [*range(200, 300), *range(shared)]
    shapes.write(folder / "train.parquet", images[:200], labels[:200])
    shapes.write(folder / "test.parquet", images[test], labels[test])
    return images[test]


def test_an_image_of_the_test_that_stands_in_training_is_taken_out_there_and_named(tmp_path):
    tests = in_both(tmp_path, 1)
    report = prepare(wanted(tmp_path), tmp_path / "out")
    assert (report.shared, report.duplicates, report.test_rows) == (1, 0, 101)
    assert report.train_rows + report.validation_rows == 199
    assert "    train.parquet, image 1 is test.parquet, image 101" in report.lines()
    kept, _ = training.read(tmp_path / "out" / "test.parquet", 32)
    assert (kept.permute(0, 2, 3, 1).numpy() == tests).all(), "the test is what it is for everybody"
    seen = judging.images(
        {split: tmp_path / "out" / f"{split}.parquet" for split in SPLITS}, report.shared
    )
    assert (seen.rows, seen.judged) == (
        report.train_rows,
        report.validation_rows + 101,
    ) and not seen.faults
    assert prepare(wanted(tmp_path), tmp_path / "out").shared == 1
    told = list(hooks.plain(seen))
    assert (
        f"  none of {seen.judged:,} measured images is one of the {seen.rows:,} training images"
        in told
    )


def test_a_test_that_is_a_part_of_training_ends_the_preparation(tmp_path, golden_message):
    in_both(tmp_path, 12)
    with pytest.raises(Stop, match="12 of 112 test images are also training images") as stop:
        prepare(wanted(tmp_path), tmp_path / "out")
    golden_message(stop.value)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.json"]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_measured_image_that_somebody_has_put_into_training_is_a_fault(
    split, tmp_path, golden_message
):
    import pyarrow as pa
    import pyarrow.parquet as pq

    in_both(tmp_path, 0)
    prepare(wanted(tmp_path), tmp_path / "out")
    files = {name: tmp_path / "out" / f"{name}.parquet" for name in SPLITS}
    pq.write_table(
        pa.concat_tables([pq.read_table(files["train"]), pq.read_table(files[split]).slice(2, 1)]),
        files["train"],
    )
    seen = judging.images(files)
    assert [fault["kind"] for fault in seen.faults] == ["image_leak"]
    golden_message(seen.complaint)


def test_nothing_in_a_folder_of_images_goes_without_a_word(tmp_path, golden_message):
    images, _ = shapes.pictures(per_class=2)
    for index, name in enumerate(
        [
            "train/cat/a.png",
            "train/cat/b.png",
            "train/dog/a.png",
            "train/dog/b.png",
            "val/cat/a.png",
            "test/dog/a.PNG",
        ]
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(shapes.png(images[index]))
    for name in (
        "train/loose.png",
        "train/cat/c.tif",
        "train/dog/more/d.png",
        "train/dog/e.png",
        "test/fox/a.png",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"no image")
    (tmp_path / "README.md").write_text("About these images.", encoding="utf-8")
    report = prepare(wanted(tmp_path, classes=2), tmp_path / "out")
    reasons = [reason for _, reason in report.bad_lines]
    left_out = [
        "train/loose.png",
        "train/cat/c.tif",
        "train/dog/e.png",
        "train/dog/more",
        "test/fox/a.png",
    ]
    assert [reason.partition(": ")[0] for reason in reasons] == left_out
    assert (report.rows_in, report.train_rows + report.validation_rows, report.test_rows) == (
        11,
        5,
        1,
    )
    (validation,) = [line for line in report.lines() if line.startswith("validation")]
    golden_message("\n".join([*reasons, validation]))


def test_of_several_files_a_bad_image_names_its_own(tmp_path):
    images, labels = shapes.pictures(per_class=2)
    for name in ("a", "b"):
        shapes.write(tmp_path / f"{name}.parquet", images, labels + 2 * (name == "b"))
    report = prepare(wanted(tmp_path, classes=10), tmp_path / "out")
    assert report.bad_lines[0][1].startswith("b.parquet: ")


def test_a_folder_in_a_folder_is_named(tmp_path, golden_message):
    """What `hf download uoft-cs/cifar10` leaves."""
    shapes.write(tmp_path / "plain_text" / "train.parquet", *shapes.pictures(per_class=2))
    with pytest.raises(Stop) as stop:
        prepare(wanted(tmp_path), tmp_path / "out")
    assert f"`{tmp_path}/plain_text`" in stop.value.text
    golden_message(stop.value)


def test_images_of_another_size_are_scaled(tmp_path):
    images, labels = shapes.pictures(per_class=2)
    shapes.write(tmp_path / "a.parquet", images, labels)
    report = prepare(wanted(tmp_path / "a.parquet", image_size=16), tmp_path / "out")
    assert report.resized == 20
    assert training.read(tmp_path / "out" / "train.parquet", 16)[0].shape == (10, 3, 16, 16)


def test_a_class_without_images_is_named(tmp_path, golden_message):
    images, labels = shapes.pictures(per_class=2)
    shapes.write(tmp_path / "a.parquet", images[labels != 4], labels[labels != 4])
    with pytest.raises(Stop, match="ring") as stop:
        prepare(wanted(tmp_path / "a.parquet"), tmp_path / "out")
    golden_message(stop.value)


def test_prepared_images_are_used_where_their_source_is_not(tmp_path):
    shapes.write(tmp_path / "a.parquet", *shapes.pictures(per_class=2))
    first = prepare(wanted(tmp_path / "a.parquet"), tmp_path / "out")
    (tmp_path / "a.parquet").unlink()
    assert prepare(wanted(tmp_path / "a.parquet"), tmp_path / "out") == first


def test_an_image_moved_to_another_class_is_prepared_anew_with_its_new_label(tmp_path):
    images, _ = shapes.pictures(per_class=2)
    # Names of one order over all classes, as collections number them: without the folders, a move
    # changes nothing.
    for index, name in enumerate(["cat/1", "cat/2", "cat/3", "dog/4", "dog/5"]):
        file = tmp_path / "images" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(shapes.png(images[index]))
    source = wanted(tmp_path / "images", classes=2)
    before = prepare(source, tmp_path / "out")
    assert prepare(source, tmp_path / "out").key == before.key
    (tmp_path / "images" / "cat" / "3.png").rename(tmp_path / "images" / "dog" / "3.png")
    assert prepare(source, tmp_path / "out").key != before.key
    labels = [
        int(label)
        for split in ("train", "validation")
        for label in training.read(tmp_path / "out" / f"{split}.parquet", 32)[1]
    ]
    assert sorted(labels) == [0, 0, 1, 1, 1]


# What the recipe says


def test_every_value_of_the_recipe_reaches_the_config_and_the_job():
    plan = plan_of(RECIPE.relative_to(ROOT))
    config = yaml.safe_load(plan.stages[-1].files[0].text)
    trainer = config["trainer"]
    assert (
        trainer["num_train_epochs"],
        trainer["per_device_train_batch_size"],
        trainer["learning_rate"],
    ) == (
        10,
        32,
        1e-3,
    )
    assert config["model"] == {
        "architecture": "resnet18",
        "width": 64,
        "image_size": 32,
        "classes": 10,
    }
    assert (config["data"]["random_crop_padding"], config["data"]["random_flip"]) == (4, True)
    assert config["prepare"]["hub"] == "uoft-cs/cifar10"
    job = manifest(RECIPE)
    assert (job["metadata"]["name"], job["metadata"]["namespace"]) == (
        "resnet18-cifar10-git",
        "rhoai-learning",
    )
    assert list(job["spec"]["pytorchReplicaSpecs"]) == ["Master"]
    container = pod(RECIPE)["containers"][0]
    assert container["resources"] == {
        "requests": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 1},
        "limits": {"cpu": "6", "memory": "24Gi", "nvidia.com/gpu": 1},
    }
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod(RECIPE)["volumes"]
        if len(volume) == 2 and "persistentVolumeClaim" in volume
    ]
    assert claims == ["cifar10-data-pvc", "trained-models-pvc", "workspace-pvc"]


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        ("openshift.limits.memory=8 GiB", "openshift.limits.memory"),
        ("openshift.limits.cpus=2", "openshift.limits.cpus"),
        ("data.mean=[0.5, [2]]", "data.mean"),
        ("data.std=", "mean"),
        ("data.random_crop_padding=32", "data.random_crop_padding"),
        ("openshift.data_dir=/elsewhere", "openshift.data_dir"),
        ("image.code_from_git.commit=main", "image.code_from_git.commit"),
        ("image.code_from_git.url=https://me:secret@github.com/a/b", "image.code_from_git.url"),
    ],
)
def test_a_recipe_for_images_that_cannot_work_is_refused(change, setting, golden_message):
    with pytest.raises(Stop) as stop:
        load(RECIPE, from_options([change]))
    assert setting in [setting_of(problem) for problem in stop.value.problems]
    golden_message(stop.value)


def test_a_column_that_local_images_do_not_have_is_named(golden_message):
    with pytest.raises(Stop) as stop:
        load(
            RECIPE,
            from_options(["data.hub=", f"data.path={shapes.FILE}", "data.image_column=image"]),
        )
    assert "`image_column`" in stop.value.text and "`img`" in stop.value.text
    golden_message(stop.value)


def test_a_file_of_another_kind_is_no_file_of_images(golden_message):
    with pytest.raises(Stop) as stop:
        load(RECIPE, from_options(["data.hub=", f"data.path={ROOT / 'README.md'}"]))
    assert stop.value.text.startswith(f"--set data.path={ROOT / 'README.md'}: ")
    golden_message(stop.value)


def test_rendering_a_placeholder_for_the_commit_says_so(recipe_command, tmp_path):
    done = recipe_command("render", RECIPE, "--out", tmp_path)
    assert done.returncode == 0 and f"`recipe check {RECIPE}` has 1 note." in done.stderr
    own = [part for change in CODE for part in ("--set", change)]
    done = recipe_command("render", RECIPE, "--out", tmp_path, *own)
    assert done.returncode == 0 and "1 note" not in done.stderr


def left_by_a_run(folder):
    """A run folder with a small network that has learned nothing, and the network."""
    torch.manual_seed(7)
    model = network.build("resnet18", 4, 2)
    (folder / "run.json").write_text('{"kind": "rehearsal"}', encoding="utf-8")
    facts = {"classes": ["night", "day"], "mean": [0.5] * 3, "std": [0.25] * 3, "image_size": 32}
    shape = {"architecture": "resnet18", "width": 4, "classes": 2}
    network.save(folder / "best_model.pth", {"model": model.state_dict(), "shape": shape, **facts})
    return model


@pytest.mark.long
def test_the_page_of_a_model_of_images_takes_a_picture(tmp_path):
    from gradio_client import Client, handle_file

    left_by_a_run(tmp_path)
    Image.new("RGB", (40, 50), (250,) * 3).save(tmp_path / "day.png")
    with servers.shown("chat", RECIPE, tmp_path, "--page") as (url, _):
        said = Client(url, verbose=False).predict(
            handle_file(str(tmp_path / "day.png")), api_name="/ask"
        )
    shares = {each["label"]: each["confidence"] for each in said["confidences"]}
    assert set(shares) == {"night", "day"} and sum(shares.values()) == pytest.approx(1)


def test_a_model_of_images_is_asked_with_a_picture_alone_and_in_a_chat(
    tmp_path, capsys, monkeypatch
):
    model = left_by_a_run(tmp_path)
    pictures = [tmp_path / "night.png", tmp_path / "day.jpg"]
    for picture, grey in zip(pictures, (8, 250), strict=True):
        Image.new("RGB", (40, 50), (grey,) * 3).save(picture)
    run = ("--run", str(tmp_path))
    seen = {}
    for picture in pictures:
        assert command(["ask", str(RECIPE), str(picture), *run]) == 0
        seen[picture.stem] = dict(line.split() for line in capsys.readouterr().out.splitlines()[2:])
    assert seen["day"]["day"] != seen["night"]["day"] and set(seen["day"]) == {"night", "day"}
    pixels = torch.from_numpy(
        np.asarray(Image.open(pictures[1]).resize((32, 32), Image.Resampling.BILINEAR)).copy()
    )
    batch = (pixels.permute(2, 0, 1)[None] / 255 - 0.5) / 0.25
    with torch.no_grad():
        share = float(model.eval()(pixel_values=batch).logits.softmax(-1)[0, 1])
    assert seen["day"]["day"] == f"{share:.1%}"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{pictures[0]}\nno such file\n{RECIPE}\n"))
    assert command(["chat", str(RECIPE), *run]) == 0
    said = capsys.readouterr().out
    assert "night" in said and seen["night"]["day"] in said
    assert "The file `no such file` does not exist" in said and "not a readable image" in said


def test_what_is_no_picture_and_what_images_have_not_is_said(tmp_path, capsys, monkeypatch):
    (tmp_path / "run.json").write_text('{"kind": "rehearsal"}', encoding="utf-8")
    (tmp_path / "best_model.pth").write_bytes(b"")
    run = ("--run", str(tmp_path))
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    for arguments, told in (
        (
            ["ask", str(RECIPE), "What is this?", *run],
            "This model classifies images. Name a picture file.",
        ),
        (["ask", str(RECIPE), str(tmp_path / "a.png"), *run], "The weights in `"),
        (
            ["ask", str(RECIPE), str(tmp_path / "a.png"), "--base", *run],
            "model started from random weights.",
        ),
        (["serve", str(RECIPE), *run], "classifies images"),
        (
            ["ask", str(RECIPE), "a.png", "--url", "http://127.0.0.1:9"],
            "OpenAI's API has no question for it.",
        ),
    ):
        assert command(arguments) == 1
        assert told in capsys.readouterr().err
    assert command(["compare", str(RECIPE), *run]) == 0
    said = capsys.readouterr().out
    assert "train" in said and "not begun" in said


def test_a_rehearsal_below_60_percent_has_failed(golden_message):
    plan = plan_of(RECIPE)
    translation.judge(plan, [Summary(best_accuracy=0.6)])
    with pytest.raises(Stop, match=r"59\.9%") as stop:
        translation.judge(plan, [Summary(best_accuracy=0.599)])
    golden_message(stop.value)


# Code by git


@pytest.mark.parametrize("recipe", ON_CLUSTER, ids=lambda path: path.stem)
def test_any_recipe_may_take_its_code_from_git(recipe):
    spec = pod(recipe, *CODE)
    (init,) = spec["initContainers"]
    (container,) = spec["containers"]
    assert init["command"][-3:] == ["https://github.com/my-team/code.git", COMMIT, podspec.CODE]
    assert init["image"] == container["image"]
    assert {"name": "code", "emptyDir": {}} in spec["volumes"]
    assert {"name": "PYTHONPATH", "value": podspec.CODE} in container["env"]
    assert {"name": "code", "mountPath": kubernetes.CODE_DIR, "readOnly": True} in container[
        "volumeMounts"
    ]
    assert {"name": "code", "mountPath": kubernetes.CODE_DIR} in init["volumeMounts"]
    assert init["securityContext"] == container["securityContext"]


def test_without_it_nothing_is_cloned():
    spec = pod(ROOT / "recipes" / "survival.yaml")
    assert "initContainers" not in spec
    assert "PYTHONPATH" not in {entry["name"] for entry in spec["containers"][0]["env"]}


def test_the_clone_is_exactly_the_commit_or_fails(tmp_path):
    git = [
        "git",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.org",
        "-C",
        str(tmp_path / "origin"),
    ]
    (tmp_path / "origin").mkdir()
    subprocess.run([*git, "init", "--quiet"], check=True)
    commits = []
    for text in ("first", "second"):
        (tmp_path / "origin" / "code.py").write_text(text, encoding="utf-8")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", text], check=True)
        done = subprocess.run(
            [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
        )
        commits.append(done.stdout.strip())

    def clone(commit):
        script = [
            "sh",
            "-c",
            podspec.CLONE,
            "clone-code",
            f"file://{tmp_path}/origin",
            commit,
            str(tmp_path / "code"),
        ]
        return subprocess.run(
            script,
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        )

    # Twice into one folder, as a pod that is started again does.
    for commit, text in zip(commits, ("first", "second"), strict=True):
        assert clone(commit).returncode == 0
        assert (tmp_path / "code" / "code.py").read_text(encoding="utf-8") == text
    assert clone(COMMIT).returncode != 0


def _imports(file):
    """The modules that a file imports when it runs, those inside functions too."""
    waiting = [ast.parse(file.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue  # for mypy alone
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file(module):
    base = ROOT.joinpath(*module.split("."))
    return next(
        (path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None
    )


# Import names that OpenShift AI's training image py312-cuda128-torch290 has, among many more.
# Source: Pipfile and Pipfile.lock in opendatahub-io/distributed-workloads,
# images/runtime/training/py312-cuda128-torch290 (transformers 5.5.0, accelerate 1.12.0, datasets
# 4.3.0, numpy 1.26.4, pyarrow 23.0.1, pillow 12.3.0, pydantic 2.12.5, tensorboard 2.20.0). Images
# up to py312-cuda128-torch280 lack Pillow; there `recipe prepare` has to be done elsewhere.
STOCK_PACKAGES: tuple[str, ...] = (
    "PIL",
    "accelerate",
    "datasets",
    "jinja2",  # torch requires it
    "numpy",
    "pyarrow",
    "pydantic",
    "torch",
    "transformers",
    "yaml",
)
# What transformers itself requires (5.5.0, setup.py), with huggingface_hub 1 and its httpx, and
# PyTorch (2.9.0, setup.py).
STOCK_PACKAGES += ("huggingface_hub", "httpx", "safetensors", "tokenizers", "jinja2")
# What accelerate requires (1.0.0, setup.py).
STOCK_PACKAGES += ("psutil",)
# Packages that the stock image lacks, and the modules that import them when they are called: for
# spreadsheets, models of the hub, S3, cleaning, what is said of rows, tracking servers, rewards and
# trials.
OF_LANGUAGE = {
    "orjson": ("data.row_files",),
    "bs4": ("data.html_text",),
    "charset_normalizer": ("data.table_layout",),
    "s3fs": ("data.object_store",),
    "datatrove": (
        "data.doctor",
        "parts.pretrain.cleaning",
        "parts.pretrain.executors",
    ),
    "spacy": ("parts.pretrain.cleaning",),
    "loguru": ("data.doctor",),
    "ray": ("parts.pretrain.executors",),
    "py3langid": ("data.doctor",),
    "lm_eval": ("parts.evaluate.evaluate",),
    "peft": ("parts.evaluate.evaluate",),
    **dict.fromkeys(("mlflow", "wandb"), ("parts.tracking.servers",)),
    "axolotl": (
        "parts.rewards.functions",
        "parts.proof.prove",
        "trainer.plugin",
        "trainer.plugin_settings",
    ),
    "jsonschema": ("check.by_schema", "check.schema_errors"),
    "optuna": ("parts.search.trials", "parts.search.pruning"),
    "portalocker": ("tools.locks",),  # on Windows alone
}
# A pod there makes no page of the run: an ImportError is no error.
NOT_IN_STOCK = "runner.parts.report.page"


def test_what_runs_in_a_stock_image_imports_only_what_that_has():
    """All of a recipe's pods, and what they import by name."""
    named = [parts.table("preparers")["images"], parts.table("engines")["images"]]
    named += [parts.table("measures")["images"], "runner.parts.evaluate.evaluate"]
    by_parts = [callbacks.__module__ for callbacks in parts.callbacks()]
    assert "runner.parts.rewards.functions" in by_parts
    reached, waiting = (
        {},
        ["runner.parts.jobs.stage", "runner.entrypoints.prepare", *named, *by_parts],
    )
    foreign = {}
    while waiting:
        module = waiting.pop()
        file = _file(module)
        if module in reached or file is None or module == NOT_IN_STOCK:
            continue
        reached[module] = file
        waiting += [module.rsplit(".", 1)[0]] if "." in module else []
        for name in _imports(file):
            top = name.split(".")[0]
            if top == "runner":
                waiting.append(name)
            elif top not in sys.stdlib_module_names:
                foreign.setdefault(top, set()).add(module)
    assert {
        "runner.parts.images.training",
        "runner.trainer.results",
        "runner.parts.images.data",
    } <= set(reached)
    # What only recipes of language come to.
    for package, modules in OF_LANGUAGE.items():
        assert foreign.pop(package, set()) <= {f"runner.{module}" for module in modules}, package
    assert set(foreign) <= set(STOCK_PACKAGES), {
        name: foreign[name] for name in set(foreign) - set(STOCK_PACKAGES)
    }
    without = f"import sys; sys.modules.update(dict.fromkeys({list(OF_LANGUAGE)}))"
    imports = "; ".join(
        f"import {module.partition(':')[0]}"
        for module in ("runner.parts.jobs.stage", "runner.entrypoints.prepare", *named, *by_parts)
    )
    subprocess.run([sys.executable, "-c", f"{without}; {imports}"], check=True, cwd=ROOT)
