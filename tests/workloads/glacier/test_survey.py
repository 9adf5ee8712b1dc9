"""`trainbook data`: what lies in a folder, in any layout, and a configuration that trains on it as it is."""

import re

import numpy as np
import pytest
import yaml

from lib.errors import BadInput
from lib.task import find_task, load_config, load_task
from tests.workloads.glacier.files import scene, write_bands, write_image, write_patches, write_scenes, write_tiff
from trainbook.commands import main

SURVEY = find_task("glacier").survey


def written(survey, tmp_path, **changes):
    """The task of a survey's configuration, as a person runs it."""
    path = tmp_path / "own.yaml"
    path.write_text(survey.configuration)
    return load_task(load_config(path, {"data.num_workers": 0, **changes}))


def source_of(survey):
    return yaml.safe_load(survey.configuration)["workload"]["source"]


def floods(root, count=8):
    """Chips as in Sen1Floods11: bands in dB, labels -1, 0, 1, one image all NaN, one label all -1, another product."""
    for number in range(count):
        image, classes = scene(number, (64, 64))
        values = (image / 10 - 30).astype(np.float32)
        label = (classes % 2).astype(np.int16)
        label[:8] = -1
        if number == 0:
            values[:] = np.nan
        if number == 1:
            label[:] = -1
        origin = (number * 10**5, 0)
        write_tiff(root / "S1Hand" / f"Ghana_{number}_S1Hand.tif", values, origin)
        write_tiff(root / "LabelHand" / f"Ghana_{number}_LabelHand.tif", label, origin)
        write_tiff(root / "JRCWaterHand" / f"Ghana_{number}_JRCWaterHand.tif", (classes % 2).astype(np.uint8), origin)
    return root


def test_floods_by_two_sensors_and_a_label_load_with_the_printed_settings(tmp_path):
    survey = SURVEY(floods(tmp_path / "data"))
    assert source_of(survey) == {
        "bands": ["band1", "band2"], "channels": [1, 2], "classes": ["background", "foreground"], "codes": [0, 1],
        "ignored_codes": [-1], "images": "S1Hand/*_S1Hand.tif", "masks": "LabelHand/*_LabelHand.tif",
    }  # fmt: skip
    for words in ("Types: float32 (8)", "EPSG:32643 (8)", "12.50% of the pixels", "1 scenes hold none at all", "int16"):
        assert words in survey.text, words
    assert "other units" not in survey.text, "a chip without data has no units"
    assert survey.configuration.endswith(
        "bad_input_limit: 2   # scenes that cannot be used:\n"
        "  #   Ghana_0: no pixel has data\n  #   Ghana_1: the mask labels no pixel"
    )
    parts = written(survey, tmp_path).datasets()  # the two dead chips are left out, and no more
    assert len(parts["train"].store.names) == 6 and all(len(part) for part in parts.values())


def test_a_usual_mark_of_no_data_among_a_bands_values_comes_with_the_setting_that_hides_it(tmp_path):
    for number in range(8):
        image, classes = scene(number, (32, 32))
        image[1, :4] = -9999
        write_tiff(tmp_path / "data" / "images" / f"{number}.tif", image, (number * 10**5, 0))
        write_tiff(tmp_path / "data" / "masks" / f"{number}.tif", classes, (number * 10**5, 0))
    text = SURVEY(tmp_path / "data").text
    assert "band2 has -9999" in text and "workload.source.nodata: [-9999]" in text and "band1 has" not in text
    assert "nodata: [" not in SURVEY(floods(tmp_path / "floods")).text


def chips(root, parts=("train", "test"), count=6):
    """PNG masks and band files without a place on the map, in folders of a fixed split."""
    for part in parts:
        for number in range(count):
            image, classes = scene(hash_of(part, number), (48, 48), 3)
            write_image(root / part / "images" / f"{number}.tif", (image * 10).astype(np.int16), "GTiff")
            write_image(root / part / "masks" / f"{number}.png", (classes > 1).astype(np.uint8))
            write_image(root / part / "masks" / f"{number + 100}.png", (classes > 1).astype(np.uint8))
    return root


def hash_of(part, number):
    return 100 * len(part) + number


def test_chips_in_train_and_test_with_png_masks_keep_their_split(tmp_path):
    survey = SURVEY(chips(tmp_path / "data"))
    assert "Split by folders: test 6, train 6." in survey.text and "none (no CRS) (12)" in survey.text
    task = written(survey, tmp_path)
    parts = task.datasets()
    scenes = {name: part.store.table.scene[part.chosen] for name, part in parts.items()}
    names = {name: {task.data.store.names[scene] for scene in chosen} for name, chosen in scenes.items()}
    assert names["test"] == {f"test/{number}" for number in range(6)}
    assert names["train"] | names["validation"] == {f"train/{number}" for number in range(6)}
    assert not names["train"] & names["validation"]
    assert "The split is that of the folders: 6 to train, 6 to test." in task.describe_data()


def test_one_large_scene_is_dealt_by_squares(tmp_path):
    image, _ = scene(size=(384, 384), bands=13)
    classes = np.random.default_rng(0).integers(0, 2, (384, 384), dtype=np.uint8)
    write_tiff(tmp_path / "data" / "images" / "t.tif", image.astype(np.int16), nodata=0)
    write_tiff(tmp_path / "data" / "masks" / "t.tif", classes)
    survey = SURVEY(tmp_path / "data")
    assert "by: map" in survey.configuration and len(source_of(survey)["bands"]) == 13
    parts = written(survey, tmp_path, **{"workload.tiles.size": 64, "workload.tiles.stride": 0}).datasets()
    assert all(len(part) for part in parts.values())


def test_bands_patches_and_the_classes_of_the_presets_are_known(tmp_path):
    survey = SURVEY(write_scenes(tmp_path / "bands", 8))
    assert source_of(survey)["classes"] == ["background", "glacier", "debris", "lake"]
    assert source_of(survey)["channels"] == [1, 2] and "8 scenes (files: Band1 8, Band2 8, label 8)" in survey.text
    survey = SURVEY(write_patches(tmp_path / "patches", sources=8))
    assert "2 layers" in survey.text and source_of(survey)["mask_layers"] == [1, 2]
    assert len(written(survey, tmp_path).datasets()["train"])


def test_names_that_differ_are_solved_in_the_printed_settings(tmp_path):
    for number in range(8):
        image, classes = scene(number, (32, 32))
        write_tiff(tmp_path / "data" / "images" / f"img_{number}.tif", image, (number * 10**5, 0))
        write_tiff(tmp_path / "data" / "masks" / f"mask_{number}.tif", classes, (number * 10**5, 0))
    survey = SURVEY(tmp_path / "data")
    assert source_of(survey)["name_pattern"] == "^(?:mask_|img_)(.+?)$"
    assert source_of(survey)["codes"] == [0, 1, 2, 3] and len(written(survey, tmp_path).datasets()["train"])


def test_colours_become_codes_that_are_read(tmp_path):
    green, blue = (0, 255, 0), (0, 0, 255)
    for number in range(8):
        image, classes = scene(number, (32, 32))
        colours = np.array([(0, 0, 0), green, blue, blue], np.uint8)[classes]
        write_tiff(tmp_path / "data" / "images" / f"{number}.tif", image, (number * 10**5, 0))
        write_image(tmp_path / "data" / "masks" / f"{number}.png", colours.transpose(2, 0, 1))
    survey = SURVEY(tmp_path / "data")
    assert source_of(survey)["codes"] == [0, 255, 65280] and "(0, 255, 0)" in survey.text
    task = written(survey, tmp_path)
    assert task.data.store.table.counts.sum(0).tolist() == [2048, 4096, 2048]


def test_overlaps_units_and_what_is_missing_are_said(tmp_path):
    root = write_scenes(tmp_path / "data", 6)
    image, classes = scene(3)
    write_bands(root, "img900", image, classes, origin=(3 * 100_000 + 480, 0))
    image, classes = scene(4)
    write_bands(root, "other", image * 10_000, classes, origin=(10**7, 0))
    (root / "label" / "img001.tif").unlink()
    said = SURVEY(root).text
    assert "1 pairs of scenes share ground on the map, such as img003 and img900" in said
    assert re.search("1 of 7 scenes seem to be in other units: the bands of other are (9,9|10,0).. times larger", said)
    assert "img001.tif has no mask in" in said


def test_255_beside_small_codes_is_no_class(tmp_path):
    for number in range(3):
        image, classes = scene(number, (32, 32))
        write_tiff(tmp_path / "images" / f"{number}.tif", image)
        write_tiff(tmp_path / "masks" / f"{number}.tif", np.where(classes == 3, 255, classes).astype(np.uint8))
    assert source_of(SURVEY(tmp_path))["codes"] == [0, 1, 2]
    assert source_of(SURVEY(tmp_path))["ignored_codes"] == [255]


def test_masks_that_are_no_classes_are_refused_after_all_that_was_seen(tmp_path):
    image, _ = scene(size=(32, 32))
    write_tiff(tmp_path / "images" / "0.tif", image)
    write_tiff(tmp_path / "masks" / "0.tif", image[0])
    with pytest.raises(BadInput, match=r"(?s)Size: 32 x 32.*1,024 different values.*these are no classes"):
        SURVEY(tmp_path)


def test_a_folder_without_masks_is_answered_by_what_lies_in_it(tmp_path):
    write_tiff(tmp_path / "a" / "0.tif", np.zeros((8, 8), np.uint8))
    with pytest.raises(BadInput, match=r"(?s)no images in a known layout.*a +1  0.tif.*workload.source.images"):
        SURVEY(tmp_path)
    for name in ("images/a", "images/b", "labels/x", "labels/y"):
        write_tiff(tmp_path / "b" / f"{name}.tif", np.zeros((8, 8), np.uint8))
    with pytest.raises(BadInput, match=r"No scene has all of its bands.*names there: a, x"):
        SURVEY(tmp_path / "b")
    with pytest.raises(BadInput, match="is no folder"):
        SURVEY(tmp_path / "none")


def test_the_command_prints_and_writes_a_configuration_and_groups(tmp_path, capsys):
    ground, classes = scene(9, (96, 96))
    for number in range(6):
        image, _ = scene(number, (64, 64))
        if number in (2, 4):  # chips of the same ground that overlap by 32 pixels
            image = ground[:, :64, :64] if number == 2 else ground[:, 32:, 32:]
        write_image(tmp_path / "data" / "images" / f"c{number}.tif", image, "GTiff")
        write_image(tmp_path / "data" / "labels" / f"c{number}.png", classes[:64, :64])
    files = [tmp_path / "own.yaml", tmp_path / "groups.csv"]
    command = ["data", str(tmp_path / "data"), "--yaml", str(files[0]), "--groups", str(files[1])]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "2 of 6 scenes without a place on the map show ground of another one" in said and "such as c2, c4" in said
    assert files[1].read_text().splitlines() == [
        "scene,part,group", "c0,,c0", "c1,,c1", "c2,,c2", "c3,,c3", "c4,,c2", "c5,,c5",
    ]  # fmt: skip
    assert main(command) == 2 and "is not written over" in capsys.readouterr().err
    task = load_task(load_config(files[0], {"workload.split.file": str(files[1]), "workload.split.seed": 1}))
    assert len(task.datasets()["train"])


def test_regions_with_images_and_masks_each_are_taken_together(tmp_path):
    for number, region in enumerate(("aachen", "dhaka", "lima")):
        for scene_number in range(2):
            image, classes = scene(number, (32, 32))
            for kind, values in (("images", image), ("labels", classes)):
                write_tiff(tmp_path / region / kind / f"{region}_{scene_number}.tif", values, (number * 10**5, 0))
    survey = SURVEY(tmp_path)
    assert "6 scenes" in survey.text and source_of(survey)["images"] == "*/images/*.tif"


def test_of_files_that_no_word_tells_apart_the_ones_with_few_values_are_the_masks(tmp_path):
    for number in range(6):
        image, classes = scene(number, (32, 32), bands=3)
        for ending, values in (("sat", image), ("lc", classes), ("valid", np.ones_like(classes))):
            write_tiff(tmp_path / "data" / f"x{number}_{ending}.tif", values, (number * 10**5, 0))
    survey = SURVEY(tmp_path / "data")
    assert (source_of(survey)["images"], source_of(survey)["masks"]) == ("*_sat.tif", "*_lc.tif")
    assert "Files that no scene uses:\n  .: 6, such as x0_valid.tif" in survey.text
    assert len(written(survey, tmp_path).datasets()["train"])


def test_bands_in_folders_of_their_own_are_read_together(tmp_path):
    for number in range(6):
        image, classes = scene(number, (32, 32))
        for word, values in (("red", image[0]), ("nir", image[1]), ("gt", classes)):
            write_tiff(tmp_path / "data" / f"train_{word}" / f"{word}_patch_{number}.tif", values, (number * 10**5, 0))
        write_tiff(tmp_path / "data" / "test_red" / f"red_patch_9{number}.tif", image[0], (number * 10**5, 10**6))
    survey = SURVEY(tmp_path / "data")
    source = source_of(survey)
    assert source["images"] == "train_{band}/{band}_*.tif" and source["band_files"] == source["bands"] == ["nir", "red"]
    assert "test_red: 6, such as red_patch_90.tif" in survey.text
    assert written(survey, tmp_path).datasets()["train"][0][0].shape == (2, 32, 32)


def test_two_sensors_whose_images_have_other_bands_are_not_mixed(tmp_path):
    for number in range(7):
        image, classes = scene(number, (32, 32), bands=4)
        for sensor, bands in (("s1", image[:2]), ("s2", image)):
            for kind, values in (("img", bands), ("msk", classes)):
                path = tmp_path / "data" / str(number) / f"sentinel12_{sensor}_{number}_{kind}.tif"
                write_tiff(path, values, (number * 10**5, 0))
    source = source_of(SURVEY(tmp_path / "data"))
    assert (source["images"], source["masks"]) == ("*/sentinel12_s2_*_img.tif", "*/sentinel12_s2_*_msk.tif")
    assert len(source["bands"]) == 4


def test_masks_in_jpeg_have_the_codes_that_were_meant(tmp_path):
    for number in range(6):
        image, classes = scene(number, (64, 64), bands=3)
        name = f"water_{number}.jpg"
        write_image(tmp_path / "data" / "Images" / name, image.astype(np.uint8), "JPEG")
        write_image(tmp_path / "data" / "Masks" / name, np.stack([(classes % 2 * 255).astype(np.uint8)] * 3), "JPEG")
    survey = SURVEY(tmp_path / "data")
    assert source_of(survey)["codes"] == [0, 255] and "pixel is taken for the nearest code" in survey.text
    task = written(survey, tmp_path)
    assert task.data.store.table.counts.sum(0).tolist() == [6 * 2048, 6 * 2048]


def test_formats_that_are_not_read_are_named(tmp_path):
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "image_1.h5").write_bytes(b"")
    with pytest.raises(BadInput, match=r"There are 1 .h5, which are not read: .*write arrays as .npy"):
        SURVEY(tmp_path)


def test_of_several_masks_the_one_of_classes_is_taken_and_the_others_are_said(tmp_path):
    for number in range(6):
        image, classes = scene(number, (32, 32), bands=3)
        things = np.arange(1024).reshape(32, 32) // 90
        for folder, values in (("SegmentationClass", classes), ("SegmentationObject", things)):
            write_image(tmp_path / folder / f"{number}.png", values.astype(np.uint8))
        write_image(tmp_path / "JPEGImages" / f"{number}.jpg", image.astype(np.uint8), "JPEG")
    survey = SURVEY(tmp_path)
    assert source_of(survey)["masks"] == "SegmentationClass/*.png"
    assert "The masks may also be SegmentationObject/*.png (6 scenes): change workload.source.masks." in survey.text


def test_bands_of_another_size_than_the_mask_are_left_out(tmp_path):
    for number in range(6):
        image, classes = scene(number, (32, 32))
        coarse = image[:, ::2, ::2]
        for ending, values in (("B02", image[0]), ("B03", image[1]), ("B01", coarse[0]), ("B09", coarse[1])):
            write_tiff(tmp_path / "S2" / f"P{number}" / f"P{number}_{ending}.tif", values, (number * 10**5, 0))
        write_tiff(tmp_path / "Maps" / f"P{number}" / f"P{number}_reference_map.tif", classes, (number * 10**5, 0))
    survey = SURVEY(tmp_path)
    assert source_of(survey)["bands"] == ["B02", "B03"]
    assert source_of(survey)["images"] == "S2/*/*_{band}.tif" and "such as P0_B01.tif" in survey.text


def test_of_a_mask_whose_bands_are_no_layers_the_first_with_classes_is_read(tmp_path):
    for number in range(6):
        image, classes = scene(number, (32, 32))
        mask = np.stack([image[0], classes, classes > 1, classes * 7]).astype(np.float32)
        write_tiff(tmp_path / "data" / "images" / f"{number}.tif", image, (number * 10**5, 0))
        write_tiff(tmp_path / "data" / "masks" / f"{number}.tif", mask, (number * 10**5, 0))
    survey = SURVEY(tmp_path / "data")
    assert source_of(survey)["mask_band"] == 2 and source_of(survey)["codes"] == [0, 1, 2, 3]
    assert "mask_layers" not in source_of(survey) and "these are the values of band 2" in survey.text
    assert len(written(survey, tmp_path).datasets()["train"])


def test_a_scene_without_a_part_beside_train_and_test_is_said(tmp_path):
    for number, part in enumerate(("train", "train", "train", "test", "extra")):
        image, classes = scene(number, (32, 32))
        write_tiff(tmp_path / part / "images" / f"{number}.tif", image, (number * 10**5, 0))
        write_tiff(tmp_path / part / "targets" / f"{number}_target.tif", classes, (number * 10**5, 0))
    assert "Split by folders: by the shares 1, test 1, train 3." in SURVEY(tmp_path).text


def test_stacks_outlines_and_envi_are_answered_with_what_to_do(tmp_path):
    (tmp_path / "a").mkdir()
    np.save(tmp_path / "a" / "trainX.npy", np.zeros((5, 8, 8, 3), np.float32))
    with pytest.raises(BadInput, match=r"trainX.npy has the shape \(5, 8, 8, 3\). Write each patch to a .npy of its"):
        SURVEY(tmp_path / "a")
    write_tiff(tmp_path / "b" / "0.tif", np.zeros((8, 8), np.uint8))
    (tmp_path / "b" / "0.geojson").write_text("{}")
    with pytest.raises(BadInput, match=r"There are 1 .geojson, which are not read: .*draw outlines into masks"):
        SURVEY(tmp_path / "b")
    for number in range(3):
        image, classes = scene(number, (32, 32))
        for image_name, mask_name in (("c/images/{}", "c/masks/{}"), ("d/{}_sat", "d/{}_mask")):
            write_tiff(tmp_path / f"{image_name.format(number)}.tif", image)
            write_image(tmp_path / f"{mask_name.format(number)}.img", classes, "ENVI")
    with pytest.raises(BadInput, match=r"0.img is an image of ENVI. Convert it: gdal_translate 0.img 0.tif"):
        SURVEY(tmp_path / "c")
    with pytest.raises(BadInput, match=r"d holds no images in a known layout.*0_mask.img is an image of ENVI"):
        SURVEY(tmp_path / "d")


def test_names_that_would_steer_the_terminal_are_refused_or_passed_over(tmp_path):
    for number in range(6):
        image, classes = scene(number, (32, 32))
        write_tiff(tmp_path / f"{number}_sat.tif", image, (number * 10**5, 0))
        write_tiff(tmp_path / f"{number}_mask.tif", classes, (number * 10**5, 0))
    (tmp_path / "train\x1b[2J.txt").write_text("0_sat\n1_sat\n2_sat\n")
    assert "\x1b" not in SURVEY(tmp_path).text
    write_tiff(tmp_path / "extra" / "0\x1b[2J.tif", np.zeros((8, 8), np.uint8))
    with pytest.raises(BadInput, match=r"holds a name with control characters, 'extra/0\\x1b\[2J.tif'"):
        SURVEY(tmp_path)


def test_lists_of_names_are_a_split_that_groups_writes(tmp_path, capsys):
    root = tmp_path / "data"
    for number in range(8):
        image, classes = scene(number, (32, 32))
        write_tiff(root / "images" / f"S2_48MYU_{number}.tif", image, (number * 10**5, 0))
        write_tiff(root / "masks" / f"S2_48MYU_{number}.tif", classes, (number * 10**5, 0))
    (root / "splits").mkdir()
    (root / "splits" / "train_X.txt").write_text("48MYU_0\n48MYU_1\n48MYU_2\n48MYU_3\n48MYU_7\n")
    (root / "splits" / "val_X.csv").write_text("S2_48MYU_4.tif,S2_48MYU_4.tif\nS2_48MYU_7.tif,\n")
    (root / "splits" / "test_X.txt").write_text("images/S2_48MYU_5.tif\nimages/S2_48MYU_6.tif\n")
    (root / "readme.txt").write_text("48MYU_0\nScenes of a bay.\nMade by hand.\n")
    main(["data", str(root), "--yaml", str(tmp_path / "own.yaml"), "--groups", str(tmp_path / "groups.csv")])
    said = capsys.readouterr().out
    assert "splits/train_X.txt lists 5 scenes (train)." in said and "splits/test_X.txt lists 2 scenes (test)." in said
    assert "readme" not in said and "--groups groups.csv writes of the lists" in said
    rows = [line.split(",")[:2] for line in (tmp_path / "groups.csv").read_text().splitlines()[1:]]
    assert [part for _, part in rows] == ["train"] * 4 + ["validation", "test", "test", ""]
    options = {"data.num_workers": 0, "workload.split.file": str(tmp_path / "groups.csv")}
    parts = load_task(load_config(tmp_path / "own.yaml", options)).datasets()
    assert {part: len(tiles) for part, tiles in parts.items()}["test"] == 2
