"""The published schema of the JSON report: reports follow it, and it names all that they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator, ValidationError

from noclobber.model.reports.ledger import Entry, Ledger, Peak
from noclobber.model.reports.process import Process
from noclobber.model.reports.report import Coverage, Report, Suppressed

from .catalogue import FINDINGS
from .strategies import reports

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text())
FOLLOWS = Draft202012Validator(SCHEMA)
FULL = Report(
    tuple(FINDINGS.values()),
    Coverage(fake=True),
    processes=(Process("a", None, 1, "host", ("python", "train.py")),),
    ledger=Ledger(
        (Entry("train.py", 1, 1, "net", "ExpBackward0", 12, 1),),
        peaks=(Peak("cuda:0", 100, 40, 40, 0, 12),),
        in_place=12,
        lines=1,
    ),
    suppressed=(Suppressed(FINDINGS["stale_save"], "inSource", "by comment"),),
)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@settings(max_examples=60, deadline=None)
@given(reports)
def test_any_report_follows_it(report: Report) -> None:
    assert [one.message for one in FOLLOWS.iter_errors(json.loads(report.to_json()))] == []


def test_it_names_all_that_a_report_holds() -> None:
    def compared(data: Any, schema: dict[str, Any], where: str) -> None:
        schema = schema["anyOf"][0] if "anyOf" in schema else schema
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        if isinstance(data, list):
            for one in data:
                compared(one, schema["items"], where)
        elif isinstance(data, dict) and where not in ("event", "program", "hint"):
            assert set(data) <= set(schema["properties"]), where
            for name, one in data.items():
                compared(one, schema["properties"][name], name)

    document = json.loads(FULL.to_json())
    FOLLOWS.validate(document)
    compared(document, SCHEMA, "report")


@pytest.mark.parametrize("name", ["findings", "coverage", "format"])
def test_what_lacks_a_part_does_not_follow_it(name: str) -> None:
    document = json.loads(FULL.to_json())
    del document[name]
    with pytest.raises(ValidationError):
        FOLLOWS.validate(document)
