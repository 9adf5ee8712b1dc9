"""Keys of earlier versions: they are ignored with a sentence on stderr, so that the config.yaml of an old run loads."""

REMOVED = {
    "data.persistent_workers": "It had no effect: worker processes live as long as the run.",
    "memory.empty_cache_every_steps": "Emptying freed nothing that PyTorch could not use again.",
    "workload.export": "Archives hold the tested weights.",
    "workload.loss.lovasz": "The terms are focal, dice, mcc and boundary.",
    "workload.loss.missed": "It was part of the Tversky loss.",
    "workload.loss.tversky": "The terms are focal, dice, mcc and boundary.",
    "workload.model.encoder": "The own U-Net is the one that trains.",
    "workload.prediction.most_behind": "All models count alike.",
    "workload.prediction.polygons": "docs/glacier.md has the lines of geopandas that write them.",
    "workload.prediction.weighted": "All models count alike.",
    "workload.sampling.rare_factor": "workload.sampling.centred shows rare classes.",
    "workload.sampling.rare_share": "workload.sampling.centred shows rare classes.",
    "workload.source.quality": "Set pixels under clouds to no data in the files.",
    "workload.source.stretch": "Stretch the bands in the files.",
    "workload.split.file": "workload.split.names gives parts to scenes by their names.",
    "workload.split.folders": "{part} in workload.source.images says where train, validation and test lie.",
}
