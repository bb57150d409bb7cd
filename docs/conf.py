"""Sphinx configuration. Pages are Markdown (MyST); the build is strict and needs no network."""

from __future__ import annotations

from brimful import __version__

project = "brimful"
author = "the brimful authors"
copyright = "the brimful authors, Apache-2.0"
release = version = __version__

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = "brimful"
html_copy_source = False
html_show_sphinx = False
