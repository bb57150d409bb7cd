"""The control plane without HTTP: a reader that answers, submissions from users, a driver that acts."""
