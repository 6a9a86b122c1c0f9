"""The ledger as a table and as a page. This test runs no PyTorch; one test runs a browser."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noclobber.model.reports.ledger import MOST, Entry, Ledger, Peak
from noclobber.model.reports.report import Report
from noclobber.render import render
from noclobber.render.html.kept import tiled
from noclobber.render.tables.ledger import table

from .browser import CHROMIUM, shown

EVIL = "</script><script>document.title='taken'</script>\x1b[31m\u202e<b>"
LEDGER = Ledger(
    (
        Entry("/x/train.py", 30, 9, "Net.fc", "AddmmBackward0", 3000, 2, source="h = self.fc(x)", op="linear (addmm)"),
        Entry("/x/train.py", 31, 9, "", "ExpBackward0", 1000, 1, source="y = h.exp()", op="exp"),
        Entry("/x/train.py", 30, 9, "Net.fc", "AddmmBackward0", 400, 1, parameter=True, op="linear (addmm)"),
        Entry("/x/train.py", 32, 9, "Net.norm", "NativeBatchNormBackward0", 80, 2, buffer=True, op="batch_norm"),
    ),
    "/x/train.py",
    31,
    4,
)


def test_the_table() -> None:
    assert table(LEDGER) == (
        "kept for backward at the peak: 4.0 kB in 3 storages; reached at /x/train.py:31, before backward 5\n"
        "parameters and buffers among the saves: 480 B, which live anyway\n"
        " bytes  share  line            module  operator        source\n"
        "3.0 kB  75.0%  /x/train.py:30  Net.fc  linear (addmm)  h = self.fc(x)\n"
        "1.0 kB  25.0%  /x/train.py:31          exp             y = h.exp()\n"
    )


def test_nothing_saved() -> None:
    assert table(Ledger()) == "kept for backward: nothing was saved\n"


def test_the_rest_is_one_row() -> None:
    entries = tuple(Entry("t.py", line, 1, "", "", 10, 1) for line in range(1, MOST + 6))
    assert table(Ledger(entries)).splitlines()[-1].split() == ["50", "B", "14.3%", "5", "more"]


def test_modules_of_one_list_are_one_row_where_there_are_many() -> None:
    entries = [
        Entry("t.py", 4, 1, f"Net.layers.{at}.experts.{one}.up", "MulBackward0", 10 + at, 1, op="mul")
        for at in range(20)
        for one in range(2)
    ]
    entries += [Entry("t.py", 4, 1, "Net.head.0", "AddmmBackward0", 5, 1)]
    row, last = table(Ledger(tuple(entries))).splitlines()[-2:]
    assert row.split() == ["780", "B", "99.4%", "t.py:4", "Net.layers.0-19.experts.0-1.up", "mul"]
    assert last.split() == ["5", "B", "0.6%", "t.py:4", "Net.head.0"]
    assert sum(one.bytes for one in entries) == Ledger(tuple(entries)).bytes == 785
    assert "Net.layers.19.experts.1.up" in table(Ledger(tuple(entries[-MOST:])))


def test_what_a_program_wrote_does_not_act_on_the_terminal() -> None:
    text = table(Ledger((Entry(EVIL, 1, 1, EVIL, "", 10, 1, source=EVIL, op=EVIL),)))
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_report_has_it_in_text_and_json_and_reads_it_back() -> None:
    report = Report(ledger=LEDGER)
    assert render(report, "full").endswith(table(LEDGER))
    assert json.loads(render(report, "json"))["ledger"]["bytes"] == 4000
    assert Report.from_json(render(report, "json")) == report
    assert "ledger" not in json.loads(render(Report(), "json"))


def test_the_page_loads_nothing_and_escapes_everything() -> None:
    evil = Entry(EVIL, 1, 1, EVIL, "", 10, 1, source=EVIL, op=EVIL)
    page = render(Report(ledger=Ledger((evil,))), "html")
    assert "<script" not in page
    assert '<b>"' not in page
    assert "\x1b" not in page
    assert not re.search(r"(src|href)=|url\(|@import|fetch\(", page)


def test_a_page_of_saves_without_bytes_has_a_table_and_no_map() -> None:
    page = render(Report(ledger=Ledger((Entry("t.py", 1, 1, "", "ExpBackward0", 0, 1, op="exp"),))), "html")
    assert "kept for backward at the peak: 0 B in 1 storage" in page
    assert "<td>exp</td>" in page
    assert "<ol" not in page


def test_a_map_names_what_is_kept_and_its_part() -> None:
    page = render(Report(ledger=LEDGER), "html")
    assert re.findall(r"<b><bdi>(.*?)</bdi></b> <span>(.*?)</span>", page) == [
        ("/x/train.py:30", "3.0 kB, 75.0%"),
        ("/x/train.py:31", "1.0 kB, 25.0%"),
        ("Net.fc", "3.0 kB, 75.0%"),
        ("no module", "1.0 kB, 25.0%"),
        ("linear (addmm)", "3.0 kB, 75.0%"),
        ("exp", "1.0 kB, 25.0%"),
    ]


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=40), st.floats(0.2, 5))
def test_tiles_fill_the_map_and_are_as_large_as_what_they_stand_for(sizes: list[int], ratio: float) -> None:
    tiles = list(tiled(sorted(sizes, reverse=True), ratio))
    for (left, top, width, height), count in zip(tiles, sorted(sizes, reverse=True), strict=True):
        assert width * height == pytest.approx(count / sum(sizes))
        assert left >= 0
        assert top >= 0
        assert left + width <= 1 + 1e-6
        assert top + height <= 1 + 1e-6
    for one, other in itertools.combinations(tiles, 2):
        wide, high = (min(one[at] + one[at + 2], other[at] + other[at + 2]) - max(one[at], other[at]) for at in (0, 1))
        assert min(wide, high) < 1e-6


def test_many_equal_tiles_are_nearly_squares() -> None:
    ratios = [width * 3 / height for _, _, width, height in tiled([1] * 40, 3)]
    assert max(ratios) < 2
    assert min(ratios) > 0.5


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("by", ["line", "module", "operator"])
def test_a_browser_shows_the_map_that_is_chosen_and_fills_it(by: str, tmp_path: Path) -> None:
    choose = f"""
        document.getElementById("by-{by}").click();
        const map = document.querySelector(".by-{by}"), tiles = [...map.children];
        const area = tiles.reduce((sum, one) => sum + one.offsetWidth * one.offsetHeight, 0);
        const others = [...document.querySelectorAll("ol.map")].filter(one => one.offsetParent).length;
        document.title = `${{others}} shown, ${{Math.round(100 * area / (map.offsetWidth * map.offsetHeight))}} %`;
    """
    dom = shown(render(Report(ledger=LEDGER), "html"), tmp_path, choose)
    assert "<title>1 shown, 100 %</title>" in dom


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize(("width", "printed", "part"), [(640, "true", ".wide"), (380, "false", "h1")])
def test_nothing_is_cut_off_on_paper_or_on_a_telephone(width: int, printed: str, part: str, tmp_path: Path) -> None:
    place, module = "examples/a_residual_network.py", "ResidualNetwork.blocks.2.conv1"
    source = "            return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))"
    entries = (Entry(place, 46, 1, module, "AddmmBackward0", 3000, 2, source=source, op="linear (addmm)"),)
    page = render(Report(ledger=Ledger(entries), program={"argv": [f"examples/{'residual_' * 6}network.py"]}), "html")
    dom = shown(
        page,
        tmp_path,
        f"""
        if ({printed}) for (const sheet of [...document.styleSheets]) for (const rule of [...sheet.cssRules])
            if (rule.conditionText === "print") for (const one of rule.cssRules)
                sheet.insertRule(one.cssText, sheet.cssRules.length);
        document.body.style.width = "{width}px";
        const part = document.querySelector("{part}");
        document.title = `needs ${{part.scrollWidth - part.clientWidth}} more`;
        """,
    )
    assert "<title>needs 0 more</title>" in dom


@pytest.mark.parametrize("width", [40, 60, 80, 100, 150])
def test_a_table_fits_where_it_can(width: int) -> None:
    source = "hidden_state = self.encoder(inputs, attention_mask=attention_mask, position_ids=position_ids)"
    module = "Transformer.encoder.layers.11.attention.query_key_value"
    entries = (
        Entry("train.py", 30, 9, module, "AddmmBackward0", 3000, 2, source=source, op="linear (addmm)"),
        Entry("train.py", 31, 9, "Net", "ExpBackward0", 1000, 1, source="y = h.exp()", op="exp"),
    )
    text = table(Ledger(entries, "train.py", 31, 4), width)
    assert max(map(len, text.splitlines())) <= width
    assert "3.0 kB  75.0%  train.py:30" in text
    assert ("source" in text) == (width >= 80)
    assert ("query_key_value" in text) == (width >= 60)
    assert table(LEDGER, 1000) == table(LEDGER)


def test_a_step_that_does_not_fit_says_what_frees_memory() -> None:
    inside = [(f"Net.layers.{layer}.{part}", size) for layer in range(3) for part, size in (("norm", 100), ("fc", 300))]
    entries = tuple(Entry("t.py", 1, 1, module, "", size, 1) for module, size in [*inside, ("Net.head", 50)])
    fits = Ledger(entries, peaks=(Peak("cuda:0", 5000, 0, 0, 0, 1250),))
    too_large = Ledger(entries, peaks=(Peak("cuda:0", 1000, 0, 0, 0, 1250),), in_place=300, lines=2)
    assert "frees" not in table(fits)
    assert "half the batch frees at most 625 B\n" in table(too_large)
    assert "checkpointing of each of the 3 modules of `Net.layers` frees at most 800 B\n" in table(too_large)
    assert "writing in place at 2 lines frees 300 B (`--hints`)\n" in table(too_large)
    assert Report.from_json(render(Report(ledger=too_large), "json")).ledger == too_large


def test_modules_that_stand_alone_in_a_list_are_no_blocks() -> None:
    entries = tuple(Entry("t.py", 1, 1, f"Sequential.{at}", "", 100, 1) for at in range(3))
    assert "checkpointing" not in table(Ledger(entries, peaks=(Peak("cuda:0", 10, 0, 0, 0, 300),)))
