"""Folders of pictures: classes by folder or table, masks by stem; notes count the rest."""

import csv
import hashlib
import unicodedata
from pathlib import PurePosixPath

import pytest
from PIL import Image

from lib.errors import BadInput
from trainbook import labelled_pictures, pictures_with_masks
from trainbook.supervised.notes import collecting
from trainbook.supervised.places import PICTURES, inputs_and_others, is_of_another_system
from trainbook.supervised.samples import reading


@pytest.fixture
def put(tmp_path):
    """put("a/b.png", ...) writes small pictures and empty files; returns the folder."""

    def write(*names):
        for name in names:
            path = tmp_path / "data" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix.lower() in (".png", ".jpg", ".jpeg", ".gif", ".bmp"):
                colour = hashlib.sha256(name.encode()).digest()[:3]  # another one in each file
                Image.new("RGB", (8, 8), tuple(colour)).save(path)
            else:
                path.write_text("x")
        return tmp_path / "data"

    return write


@pytest.fixture
def table(tmp_path):
    """table("train.csv", head, *rows) writes a table into the folder."""

    def write(name, *rows):
        with (tmp_path / "data" / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
        return tmp_path / "data"

    return write


def read(source, reader=labelled_pictures, **options):
    """Returns the pictures' names with their classes or masks, by split, and the notes."""
    with reading(source), collecting() as notes:
        parts = reader(source, **options)
    named = {}
    for part, samples in parts.items():
        names = [path.relative_to(source).as_posix() for path, _ in samples]
        targets = [getattr(target, "name", target) for _, target in samples]
        named[part] = sorted(zip(names, targets, strict=True))
    return named, " ".join(notes)


def together(parts):
    return sorted(row for rows in parts.values() for row in rows)


def labels_of(parts):
    return {label for _, label in together(parts)}


def rows_of(numbers, key="{:03}"):
    """Returns rows of a picture's name and its class, a or b."""
    return [[key.format(number), "ab"[number % 2]] for number in numbers]


def many(pattern, number=20):
    return [pattern.format(k) for k in range(number)]


FLAT = [*many("train_images/{:03}.png"), *many("test_images/9{:02}.png", 5)]
CLASSES = [(f"train_images/{k:03}.png", "ab"[k % 2]) for k in range(20)]


@pytest.mark.parametrize(
    "key", ["{:03}", "{:03}.png", "train_images/{:03}.png", "{:03}.jpg", "C:\\in\\{:03}.PNG"]
)
def test_a_table_with_the_names_of_the_files_is_the_list_of_samples(put, table, key):
    put(*FLAT, "sample_submission.csv")
    source = table("train.csv", ["id", "label"], *rows_of(range(20), key))
    parts, notes = read(source)
    assert together(parts) == CLASSES
    assert parts["validation"] != parts["train"]
    assert (
        "train.csv lists the samples: 20 pictures in 20 rows, by the column id; label is the class."
        in notes
    )
    assert "Pictures without a row, which are not used: 5 (test_images: 5)" in notes
    assert "sample_submission.csv is not used" in notes


def test_the_column_of_the_class_is_named_where_there_are_several(put, table):
    put(*FLAT)
    rows = [[key, f"{key}.png", label, f"tree_{label}"] for key, label in rows_of(range(20))]
    source = table("train.csv", ["id", "file", "label", "tree"], *rows)
    with pytest.raises(
        BadInput,
        match="train.csv lists the pictures by its column id, .* label, tree. .*workload.target",
    ):
        read(source)
    parts, notes = read(source, target="label")
    assert together(parts) == CLASSES
    assert "Columns that are not used: tree" in notes
    with pytest.raises(BadInput, match="has no column kind.*label, tree"):
        read(source, target="kind")


def test_rows_and_pictures_without_each_other_are_counted(put, table):
    put(
        *FLAT,
        "readme.txt",
        "clip.mp4",
        "notes.txt",
        "train_images/._000.png",
        "__MACOSX/x.png",
        "Thumbs.db",
    )
    source = table("train.csv", ["id", "label"], *rows_of(range(2, 24)), ["002", "a"])
    parts, notes = read(source)
    assert together(parts) == CLASSES[2:]
    assert "Rows without a picture: 4, such as 020." in notes
    assert "Rows that repeat another: 1." in notes
    assert "not used: 7 (test_images: 5, train_images: 2)" in notes
    assert "Files that are no picture: 2 .txt, 1 .mp4." in notes


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([["000", "a"], ["001", ""]], "labels.csv:3: 001.png has no label"),
        (
            [["000", "a"], ["001", "b"], ["000", "b"]],
            "labels.csv:4: 000.png is b, and a in an earlier row",
        ),
    ],
)
def test_a_row_without_a_class_or_with_another_one_is_named(put, table, rows, sentence):
    put(*many("images/{:03}.png", 2))
    with pytest.raises(BadInput, match=sentence):
        read(table("labels.csv", ["id", "label"], *rows))


def test_a_class_s_number_is_not_taken_for_a_picture_s_name(put, table):
    put(*many("train/{}.png"))
    rows = [[number % 4, number] for number in range(20)]
    parts, _ = read(table("train.csv", ["label", "id"], *rows))
    assert together(parts) == sorted((f"train/{number}.png", str(label)) for label, number in rows)


@pytest.mark.parametrize("classes", [(), ("a", "b")])
def test_folders_without_a_class_and_no_table_are_refused_with_their_pictures(put, table, classes):
    put(*FLAT)
    sentence = r"train_images: 20, test_images: 5.*no folder of a class, and no table"
    with pytest.raises(BadInput, match=sentence):
        read(table("other.csv", ["x"], [1]), classes=classes)


def test_a_table_that_is_missing_is_named(put):
    with pytest.raises(BadInput, match="workload.table is gone.csv|no table gone.csv"):
        read(put(*FLAT), table="gone.csv")


RESERVED = (
    "train Test VALID val validation images train_images TestImages masks labels train2017 "
    "images_001 stage1_train JPEGImages"
)


@pytest.mark.parametrize("name", RESERVED.split())
def test_folders_that_are_called_so_are_no_classes(put, name):
    parts, notes = read(put(*many("cat/{}.png"), *many("dog/{}.png"), f"{name}/x.png"))
    assert labels_of(parts) == {"cat", "dog"}
    assert f"Pictures in no folder of a class, which are not used: 1 ({name}: 1)" in notes


@pytest.mark.parametrize(
    "name", ["latest", "attest", "trains of thought", "evaluated", "imagery", "0", "Tree", "new"]
)
def test_other_folders_are_classes(put, name):
    parts, _ = read(put(*many("cat/{}.png"), *many(f"{name}/{{}}.jpg")))
    assert labels_of(parts) == {"cat", name}


def test_a_folder_of_that_name_is_a_class_where_the_settings_list_it(put):
    source = put(*many("valid/{}.png"), *many("invalid/{}.png"))
    with pytest.raises(BadInput, match="only one folder that may be a class"):
        read(source)
    parts, _ = read(source, classes=("valid", "invalid"))
    assert labels_of(parts) == {"valid", "invalid"}


def test_split_folders_above_the_classes_are_the_split(put):
    train = many("train/cat/{}.png")
    held = ["val/cat/1.png", "val/dog/2.png"]
    source = put(*train, *many("train/dog/{}.JPG"), *held)
    parts, notes = read(source)
    assert [name for name, _ in parts["validation"]] == held
    assert parts["test"]
    names = [name for name, _ in parts["train"] + parts["test"]]
    assert all(name.startswith("train/") for name in names)
    assert "The split is that of the folders; test is dealt from the training." in notes
    put("test/dog/1.png")
    assert read(source)[0]["test"] == [("test/dog/1.png", "dog")]
    put("bird/1.png")
    with pytest.raises(
        BadInput, match=r"lies in a folder that is called as a split, and .*bird/1.png in none"
    ):
        read(source)


def test_a_test_without_classes_is_no_part_of_the_split(put):
    source = put(*many("train/cat/{}.png"), *many("train/dog/{}.png"), *many("test/{}.png"))
    parts, notes = read(source)
    assert len(together(parts)) == 40
    assert "not used: 20 (test: 20)" in notes


def test_one_folder_around_all_and_folders_through_links_are_found(put, tmp_path):
    source = put(*many("data v2/images/cat/{}.png"), *many("data v2/images/dog/{}.png"))
    images = source / "data v2" / "images"
    (images / "bird").symlink_to(images / "dog")
    assert "cat" in labels_of(read(source)[0])
    put("data v2/images/cat/small/1.png")
    with pytest.raises(BadInput, match="lies in the folders cat and small: which is its class"):
        read(source)
    parts, _ = read(source, classes=("cat", "dog"))
    assert ("data v2/images/cat/small/1.png", "cat") in together(parts)


IN_PARTS = [*many("part_1/{:03}.png"), *many("part_2/1{:02}.png")]
NUMBERS = [*range(20), *range(100, 120)]


def test_folders_and_a_table_that_contradict_each_other_are_refused(put, table):
    put(*IN_PARTS)
    rows = [[*row, "x"] for row in rows_of(NUMBERS)]
    source = table("metadata.csv", ["image", "dx", "sex"], *rows)
    sentence = r"\(part_1, part_2\), and metadata.csv lists them with the columns dx, sex"
    with pytest.raises(BadInput, match=sentence):
        read(source)
    assert labels_of(read(source, target="dx")[0]) == {"a", "b"}
    parts, _ = read(source, classes=("part_1", "part_2"))
    assert labels_of(parts) == {"part_1", "part_2"}


def test_folders_that_a_column_of_a_table_repeats_are_the_classes(put, table):
    put(*IN_PARTS)
    rows = [[f"{number:03}", f"part_{1 + number // 100}", 8] for number in NUMBERS]
    source = table("metadata.csv", ["image", "folder", "width"], *rows)
    assert labels_of(read(source)[0]) == {"part_1", "part_2"}


def test_several_tables_and_two_pictures_of_one_name_are_refused(put, table):
    put(*many("images/{}.png"))
    rows = [["id", "label"], *rows_of(range(20), "{}")]
    table("a.csv", *rows)
    source = table("b.csv", *rows)
    with pytest.raises(BadInput, match="2 tables list the pictures: a.csv, b.csv.*workload.table"):
        read(source)
    assert len(together(read(source, table="b.csv")[0])) == 20
    put("images/3.jpg")
    with pytest.raises(BadInput, match="3 is the name of two pictures, .*3.jpg and .*3.png"):
        read(source, table="b.csv")


def test_an_id_that_a_test_picture_has_too_is_that_of_the_training(put, table):
    put(*many("train/{}.png"), *many("test/{}.png"))
    parts, _ = read(table("train.csv", ["id", "label"], *rows_of(range(20), "{}")))
    assert len(together(parts)) == 20
    assert all(name.startswith("train/") for name, _ in together(parts))


# --- masks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "pair"),
    [
        pytest.param(["images/a.jpg", "masks/a.png"], ("images/a.jpg", "a.png"), id="VOC"),
        pytest.param(["Images/a.JPG", "Masks/A.png"], ("Images/a.JPG", "A.png"), id="capitals"),
        pytest.param(
            ["VOC/JPEGImages/a.jpg", "VOC/SegmentationClass/a.png"],
            ("VOC/JPEGImages/a.jpg", "a.png"),
            id="published VOC",
        ),
        pytest.param(
            ["cells/a.png", "annotations/a.png"], ("cells/a.png", "a.png"), id="another name"
        ),
        pytest.param(["all/a.jpg", "all/a_mask.png"], ("all/a.jpg", "a_mask.png"), id="beside"),
        pytest.param(
            ["images/a.png", "masks/a_mask.gif"], ("images/a.png", "a_mask.gif"), id="behind"
        ),
        pytest.param(
            ["train/a_sat.jpg", "train/a_mask.png"],
            ("train/a_sat.jpg", "a_mask.png"),
            id="DeepGlobe",
        ),
        pytest.param(
            ["img/a.png", "labels/a_label.png"], ("img/a.png", "a_label.png"), id="labels"
        ),
        pytest.param(
            ["train_images/a.png", "train_masks/a.png"],
            ("train_images/a.png", "a.png"),
            id="by part",
        ),
    ],
)
def test_pictures_and_masks_are_paired_by_their_stems(put, names, pair):
    assert together(read(put(*names), pictures_with_masks)[0]) == [pair]


def test_pictures_and_masks_that_stand_alone_are_counted(put):
    pictures = put("images/a.jpg", "images/b.jpg", "images/x.txt")
    put("masks/a.png", "masks/c.png", "masks/._a.png")
    parts, notes = read(pictures, pictures_with_masks)
    assert together(parts) == [("images/a.jpg", "a.png")]
    assert "Pictures without a mask, which are not used: 1 (images: 1), such as b.jpg." in notes
    assert "Masks without a picture, which are not used: 1 (masks: 1), such as c.png." in notes
    assert "Files that are no picture: 1 .txt." in notes


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["images/a.jpg", "images/a.png", "masks/a.png"], "have one stem, and one mask"),
        (["images/a.jpg", "masks/a.png", "masks/a.gif"], "has two masks"),
        (["images/a.jpg", "masks/a.png", "masks/a_mask.png"], "has two masks"),
        (["b/a.png", "b/a_mask.png", "b/a_mask_1.png"], "has two masks"),
        (["images/a.jpg", "masks/b.png"], "1 pictures and 1 masks .* none belong together"),
        (["images/a.jpg"], "1 pictures and 0 masks"),
    ],
)
def test_stems_that_say_too_much_or_too_little_are_refused(put, names, sentence):
    with pytest.raises(BadInput, match=sentence):
        read(put(*names), pictures_with_masks)


def test_a_mask_of_another_patient_is_no_mask_of_this_one(put):
    names = ["one/images/0.png", "one/masks/1.png", "two/images/0.png", "two/masks/0.png"]
    assert together(read(put(*names), pictures_with_masks)[0]) == [("two/images/0.png", "0.png")]


def test_parts_of_pictures_with_masks_are_those_of_their_folders(put):
    for part in ("train", "test"):
        source = put(*many(part + "/images/{}.png"), *many(part + "/masks/{}.png"))
    parts, _ = read(source, pictures_with_masks)
    assert all(parts[part] for part in ("train", "validation", "test"))
    assert all(name.startswith("test/") for name, _ in parts["test"])
    assert len(parts["test"]) == 20


def test_hidden_files_of_other_systems_are_told_from_data(tmp_path):
    hidden = [
        "._a.png",
        ".DS_Store",
        "Thumbs.db",
        "x/__MACOSX/a.png",
        ".ipynb_checkpoints/a.png",
        "desktop.ini",
    ]
    for name in (*hidden, "a.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert inputs_and_others(tmp_path, PICTURES) == ([tmp_path / "a.png"], [])
    assert all(is_of_another_system(PurePosixPath(name)) for name in hidden)


def test_tables_called_as_parts_are_the_split(put, table):
    put(*many("images/{:03}.png", 12))
    rows = rows_of(range(12))
    table("train.csv", ["id", "label"], *rows[:6])
    table("val.csv", ["id", "label"], *rows[6:9])
    parts, notes = read(table("test.csv", ["id", "label"], *rows[9:]))
    labels = {part: "".join(label for _, label in rows) for part, rows in parts.items()}
    assert labels == {"train": "ababab", "validation": "aba", "test": "bab"}
    assert "test.csv, train.csv, val.csv list the samples: 12 pictures in 12 rows" in notes
    assert "The split is that of test.csv, train.csv, val.csv." in notes


def test_a_test_table_without_classes_is_no_part(put, table):
    put(*many("images/{:03}.png", 12))
    rows = rows_of(range(12))
    table("train.csv", ["id", "label"], *rows[:8])
    parts, notes = read(table("test.csv", ["id"], *(row[:1] for row in rows[8:])))
    assert len(together(parts)) == 8
    assert "test.csv is not used: it is called as a table of a test." in notes


def test_a_picture_in_two_tables_is_refused(put, table):
    put(*many("images/{:03}.png", 8))
    table("train.csv", ["id", "label"], *rows_of(range(6)))
    source = table("val.csv", ["id", "label"], *rows_of(range(5, 8)))
    with pytest.raises(BadInput, match=r"005.png stands in two of train.csv, val.csv. Delete"):
        read(source)


def test_a_column_of_parts_is_the_split(put, table):
    put(*many("images/{:03}.png", 12))
    words = ["train", "Train", "val", "test"] * 3
    rows = [[*row, word] for row, word in zip(rows_of(range(12)), words, strict=True)]
    parts, notes = read(table("labels.csv", ["id", "label", "subset"], *rows))
    numbers = {part: len(samples) for part, samples in parts.items()}
    assert numbers == {"train": 6, "validation": 3, "test": 3}
    assert parts["test"][0] == ("images/003.png", "b")
    assert "The split is that of the column subset." in notes


def test_accents_are_compared_as_macos_writes_them(put, table):
    put(*many(unicodedata.normalize("NFD", "images/ü{}.png"), 4))
    parts, _ = read(table("train.csv", ["id", "label"], *rows_of(range(4), "ü{}")))
    assert len(together(parts)) == 4


def test_a_link_to_a_folder_that_is_read_already_is_named(put):
    source = put(*many("cat/{}.png", 3), *many("dog/{}.png", 3))
    (source / "bird").symlink_to(source / "cat")
    parts, notes = read(source)
    assert labels_of(parts) == {"cat", "dog"}
    assert "Links to folders that are read already, which are left out: 1, such as bird." in notes
