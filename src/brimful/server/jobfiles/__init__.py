"""Job files: brimful's own, SkyPilot task YAML and Slurm batch scripts, all read into a submission."""
