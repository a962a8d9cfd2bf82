"""The editable install; all else of the build stands in pyproject.toml.

The top folder of the repository *is* the package ``trace_analyze``, whatever the checkout is called. Setuptools would
redirect imports by a hook that only a running interpreter knows, so type checkers and editors would not find the package.
``pip install -e .`` therefore makes ``build/editable/trace_analyze``, whose entries are links to the real ones, and puts
``build/editable`` on the path: a module added to a room is there at once, for tools as for Python.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).resolve().parent
VIEW = Path("build", "editable")


class EditableByLinks(editable_wheel):
    """An editable install whose path entry is a folder of links."""

    def finalize_options(self) -> None:
        """Lay the package out as ``VIEW/trace_analyze``; where links are not allowed, stay with setuptools' hook."""
        packages = [name for name in self.distribution.packages or () if name.count(".") == 1]
        rooms = [ROOT / name.partition(".")[2] for name in packages]
        try:
            link_all(ROOT / VIEW / "trace_analyze", [*rooms, *ROOT.glob("*.py"), ROOT / "py.typed"])
        except OSError:
            pass
        else:
            self.distribution.package_dir = {"": VIEW.as_posix()}
        super().finalize_options()


def link_all(folder: Path, targets: list[Path]) -> None:
    """Make ``folder`` hold one relative link to each of ``targets`` and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    up = Path(*[".."] * len(folder.relative_to(ROOT).parts))
    for target in targets:
        if target != Path(__file__).resolve():
            (folder / target.name).symlink_to(up / target.relative_to(ROOT), target_is_directory=target.is_dir())


# setuptools leaves its script out of the package, by this name
setup(script_name="setup.py", cmdclass={"editable_wheel": EditableByLinks})
