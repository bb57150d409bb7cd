"""Job files: brimful's own, SkyPilot's task YAML, and Slurm's batch scripts, as one submission."""
