"""Small competitions in the layouts that Kaggle mounts, each played to a submission."""
