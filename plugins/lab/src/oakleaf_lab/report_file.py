"""The report of a lab run as a file. The ending of its name decides: .html a page, .json data, any other text."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import msgspec

from oakleaf.core.redact import Redactor
from oakleaf.verbs.base import to_json
from oakleaf_lab.lab_report import LabReport


def check_ending(name: str) -> None:
    """Raise PluginMissing for a page without the viewer, before a run costs money."""
    if Path(name).suffix == ".html":
        from oakleaf_lab.page import find_viewer

        find_viewer()


def write_report(report: LabReport, file: BinaryIO, name: str, redactor: Redactor) -> None:
    """Write a report. Secrets that became known since the run are masked in a page, which others read."""
    match Path(name).suffix:
        case ".html":
            from oakleaf_lab.page import report_html

            file.writelines(report_html(report, redactor))
        case ".json":
            file.write(msgspec.json.format(msgspec.json.encode(report_data(report)), indent=2) + b"\n")
        case _:
            file.write("\n".join([*report.lines(), ""]).encode())


def report_data(report: LabReport) -> dict[str, object]:
    """Return a report as JSON data, with the exit code of the gates."""
    return {"exit_code": int(report.exit_code), **to_json(report)}
