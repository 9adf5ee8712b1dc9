"""The machine and its platform: hardware, memory, disk, folders, mounted inputs."""
