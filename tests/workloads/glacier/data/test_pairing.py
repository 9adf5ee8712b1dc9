"""Layouts of public collections by the names of their files: which are taken for images, and which for their masks."""

import pytest

from workloads.glacier.data.pairing import guess

PARTS = ("train", "val", "test")
LAYOUTS = {
    "burn scars": (
        [f"{part}/HLS.S30.T10SDH.20202{n}{kind}.tif" for part in ("training", "validation") for n in range(8)
         for kind in ("_merged", ".mask")],
        "*/*_merged.tif", "*/*.mask.tif", 16,
    ),
    "chips of parts": (
        [f"{part}_chips/chip_{n}{kind}.tif" for part in ("training", "validation") for n in range(6)
         for kind in ("_merged", ".mask")],
        "*_chips/*_merged.tif", "*_chips/*.mask.tif", 12,
    ),
    "masks beside, named by the part": (
        [f"tiff/{part}{kind}/{part}{n}_15.tif" for part in PARTS for n in range(5) for kind in ("", "_labels")],
        "tiff/*/*.tif", "tiff/*_labels/*.tif", 15,
    ),
    "folders named by the part": (
        [f"{part}/{part}-{kind}/{n}{end}" for part in PARTS for n in range(5)
         for kind, end in (("org-img", ".jpg"), ("label-img", "_lab.png"))],
        "*/*-org-img/*.jpg", "*/*-label-img/*_lab.png", 15,
    ),
    "town and country": (
        [f"{part}/{zone}/{kind}_png/{n}.png" for part in ("Train", "Val") for zone in ("Rural", "Urban")
         for n in range(4) for kind in ("images", "masks")],
        "*/*/images_png/*.png", "*/*/masks_png/*.png", 16,
    ),
    "regions": (
        [f"open/{region}/{kind}/{region}_{n}.tif" for region in ("aachen", "dhaka", "lima") for n in range(4)
         for kind in ("images", "labels")],
        "open/*/images/*.tif", "open/*/labels/*.tif", 12,
    ),
    "a word for masks that all paths have": (
        [f"segmentation dataset/Tile {tile}/{kind}" for tile in (1, 2) for n in range(3)
         for kind in (f"images/part_{n}.jpg", f"masks/part_{n}.png")],
        "segmentation dataset/*/images/*.jpg", "segmentation dataset/*/masks/*.png", 6,
    ),
    "a word in the middle of names": (
        [f"{kind}/{part}/{glacier}_2007_PALSAR_17_1{word}_00{n}.png" for part in ("train", "test")
         for glacier in ("Crane", "Mapple") for n in range(5)
         for kind, word in (("sar_images", ""), ("gt", "_zones"))],
        "sar_images/*/*_*.png", "gt/*/*_zones_*.png", 20,
    ),
    "two words in the middle of names": (
        [f"{kind}/S2A_T54{n}{word}_0_{n}.npy" for n in range(8)
         for kind, word in (("images", "_image"), ("labels", "_chip"))],
        "images/*_image_*.npy", "labels/*_chip_*.npy", 8,
    ),
    "two sensors in a folder a scene": (
        [f"{n}/sentinel12_{sensor}_{n}_{kind}.tif" for n in range(1, 8) for sensor in ("s1", "s2")
         for kind in ("img", "msk")],
        "*/*_img.tif", "*/*_msk.tif", 14,
    ),
    "parts of which one has no masks": (
        [f"uavid_{part}/seq{n}/{kind}/{n}.png" for part in PARTS for n in range(4) for kind in ("Images", "Labels")
         if (part, kind) != ("test", "Labels")],
        "uavid_*/*/Images/*.png", "uavid_*/*/Labels/*.png", 8,
    ),
    "a word in the middle of folders": (
        [f"flair_{number}{kind}_{part}/D00{n}/{folder}/{file}_{n}.tif"
         for number, part in (("", "train"), ("1_", "test"))
         for kind, folder, file in (("aerial", "img", "IMG"), ("labels", "msk", "MSK")) for n in range(6)],
        "*_aerial_*/*/img/IMG_*.tif", "*_labels_*/*/msk/MSK_*.tif", 12,
    ),
    "folders of single scenes": (
        [f"S{n}/{kind}.tif" for n in range(5) for kind in ("image", "mask")], "*/image.tif", "*/mask.tif", 5,
    ),
}  # fmt: skip
UNTOLD = {  # no word says which are the masks: they come both ways
    "an ending more": (
        [f"patches/S2_{scene}/S2_{scene}_{n}{kind}.tif" for scene in ("1-12_48MYU", "7-1_19QDA", "3-4_16PCC")
         for n in range(20) for kind in ("", "_cl", "_conf")],
        "patches/*/*.tif", "patches/*/*_cl.tif", 60,
    ),
    "folders with the kind and a number": (
        [f"{season}/{kind}_{n}/{season}_{kind}_{n}_p{patch}.tif" for season in ("ROIs1158_spring", "ROIs1868_summer")
         for n in (1, 37, 44) for patch in (30, 31) for kind in ("s1", "s2", "lc")],
        "*/s2_*/*_s2_*.tif", "*/lc_*/*_lc_*.tif", 12,
    ),
    "endings": (
        [f"tiles/m_3807{n:02}_ne_18_1_{kind}.tif" for n in range(7) for kind in ("naip-new", "lc", "nlcd")],
        "tiles/*_naip-new.tif", "tiles/*_lc.tif", 7,
    ),
    "beginnings": (
        [f"d/{kind}_{n}.tif" for n in range(9) for kind in ("sat", "map")], "d/sat_*.tif", "d/map_*.tif", 9,
    ),
    "formats": ([f"d/{n}.{kind}" for n in range(9) for kind in ("tif", "png")], "d/*.tif", "d/*.png", 9),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_masks_that_words_tell_are_paired_over_all_folders(name):
    paths, images, masks, scenes = LAYOUTS[name]
    best = guess(paths)[0]
    assert (best.images, best.masks, best.scenes, best.is_told) == (images, masks, scenes, True)


@pytest.mark.parametrize("name", UNTOLD)
def test_where_no_word_tells_the_masks_pairs_come_both_ways(name):
    paths, images, masks, scenes = UNTOLD[name]
    found = {(pair.images, pair.masks): pair for pair in guess(paths)}
    for ways in ((images, masks), (masks, images)):
        assert found[ways].scenes == scenes and not found[ways].is_told


def test_a_band_in_a_folder_of_its_own_is_a_pair_of_its_own():
    bands = ("blue", "green", "nir", "red")
    paths = [f"a/train_{kind}/{kind}_patch_{n}_LC08_T1.TIF" for n in range(8) for kind in (*bands, "gt")]
    found = [(pair.images, pair.masks) for pair in guess(paths) if pair.scenes == 8]
    assert {(f"a/train_{band}/{band}_*.TIF", "a/train_gt/gt_*.TIF") for band in bands} < set(found)


def test_twelve_bands_a_scene_are_twelve_kinds():
    bands = [f"B{n:02}" for n in range(1, 13)]
    paths = [f"S2/P{n}/P{n}_{band}.tif" for n in range(8) for band in bands]
    paths += [f"Maps/P{n}/P{n}_reference_map.tif" for n in range(8)]
    found = {(pair.images, pair.masks) for pair in guess(paths) if pair.scenes == 8}
    assert {(f"S2/*/*_{band}.tif", "Maps/*/*_reference_map.tif") for band in bands} <= found


def test_files_that_have_nothing_in_common_are_no_pair():
    assert guess([]) == []
    assert guess([f"a/x{n}.tif" for n in range(9)]) == []
    assert guess([*(f"images/{n}.tif" for n in range(9)), *(f"masks/{name}.tif" for name in "abcdefghi")]) == []
    assert guess([*(f"images/{n}.npy" for n in range(9)), *(f"masks/{n}.tif" for n in range(9))]) == []
