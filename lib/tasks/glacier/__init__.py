"""glacier: segmentation of glaciers in multispectral images."""
