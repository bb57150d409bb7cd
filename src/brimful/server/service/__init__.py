"""The control plane without HTTP: a reader that answers, submissions that users make, a driver that acts."""
