"""CONTROL: the service, its API and its console."""
