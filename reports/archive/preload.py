"""What the fork server of a batch loads once: importing this module imports all that analysing a capture needs.

Modules, kernel rules and page templates. Nothing here may compute with polars: its threads would not survive the fork.
"""

from __future__ import annotations

import importlib
import pkgutil

from ... import analysis, ingest
from ...analysis.kernels.classify import kernel_table
from .. import html, timeline

for package in (analysis, ingest, html, timeline):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
kernel_table()
environment = html._environment()
for template in environment.list_templates(extensions=["j2"]):
    environment.get_template(template)
