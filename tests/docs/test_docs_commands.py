"""The commands of the documents run, and end as they say.

Every line of a block marked ``sh`` or ``yaml`` that runs trace-analyze is tried in a folder with the files it names (conftest).
A comment ``# exit N`` at its end says which code it ends with (else 0); ``# not run here: WHY`` leaves it out.
"""

from __future__ import annotations

import re
import shlex

import pytest
from doc_pages import DOCS, PAGES, REPOSITORY, blocks

from trace_analyze import cli

COMMAND = re.compile(r"^(?:.*&& | *run: | +)?(?:\.venv/bin/)?trace-analyze (?P<words>.*?)(?:\s+# (?P<comment>.*))?$")


def commands():
    for page in PAGES:
        for block in blocks(page, "sh") + blocks(page, "yaml"):
            for line in block.replace("\\\n", " ").splitlines():
                match = COMMAND.match(line)
                if match:
                    yield page.name, match["words"], match["comment"] or ""


def runnable():
    return [(page, words, comment) for page, words, comment in commands() if not comment.startswith("not run here: ")]


def test_the_documents_hold_commands():
    assert len(runnable()) >= 25


@pytest.mark.parametrize("page", sorted({page for page, *_ in runnable()}))
def test_commands_end_as_they_say(page, desk, capsys):
    for _, words, comment in (entry for entry in runnable() if entry[0] == page):
        said = re.search(r"\bexit (\d)", comment)
        code = cli.main(shlex.split(words))
        out, err = capsys.readouterr()
        assert code == (int(said[1]) if said else 0), f"trace-analyze {words}\n{out}{err}"


def test_the_test_command_is_the_one_that_decides():
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    install, test = (block.strip() for block in re.findall(r"^```sh\n(python3 -m venv .*?)^```", readme, re.S | re.M))
    assert install.endswith(".sqlite")
    assert test in (REPOSITORY / ".ci" / "run").read_text("utf-8")


def test_every_option_and_command_is_documented(capsys):
    page = (DOCS / "options.md").read_text("utf-8")
    sections = dict(
        re.findall(r"^## `trace-analyze ?(\w*)[^\n]*\n(.*?)(?=^## |\Z)", page, flags=re.DOTALL | re.MULTILINE)
    )
    for command in ("", *cli.COMMANDS):
        cli.main([*command.split(), "--help"])
        printed = capsys.readouterr().out
        options = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", printed, flags=re.MULTILINE))
        assert "--help" in options
        section = sections[command or "CAPTURE"] if command in ("", "batch", "compare") else page
        text = section + (sections["CAPTURE"] if command == "batch" else "")
        missing = [option for option in sorted(options - {"--help"}) if f"{option}" not in text]
        assert not missing, f"{command or 'CAPTURE'}: {missing} not in docs/options.md"
        assert f"trace-analyze {command}" in page


def test_no_option_is_documented_that_does_not_exist(capsys):
    for command in ("", *cli.COMMANDS):
        cli.main([*command.split(), "--help"])
    known = set(re.findall(r"--[a-z][\w-]+", capsys.readouterr().out)) | {"--version"}
    named = re.findall(r"^\| (.*?) \|", (DOCS / "options.md").read_text("utf-8"), flags=re.MULTILINE)
    assert set(re.findall(r"--[a-z][\w-]+", " ".join(named))) <= known


def test_every_format_and_exit_code_is_in_the_readme():
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    assert all(f"`{name}`" in readme for name in cli.FORMATS)
    assert all(f"\n| {code} | " in readme for code in (0, 1, 2, 3))
