"""Findings whose source is hard to draw: wide characters, tabs, long lines, labels that meet, source that is gone."""

from __future__ import annotations

from noclobber.model.reports.finding import Edit, Finding
from noclobber.model.source import Span

from .source import File, advice, finding, stale

_WIDE = File(
    "学習.py",
    {
        3: "    損失 = torch.exp(入力)  # 👩‍💻 e\u0301tape",
        4: '    print("👍🏽 日本語", 損失.mul_(2), "e\u0301")',
        5: "    損失.sum().backward()",
    },
)
wide_characters = stale(
    _WIDE.save(3, "torch.exp(入力)", "`損失` is saved here: exp keeps its result"),
    _WIDE.write(4, "損失.mul_(2)", "`mul_` overwrites it here"),
    _WIDE.read(5, "損失.sum().backward()"),
)

_TABS = File("tabs.py", {11: "\tfor x in data:", 12: "\t\ty = x.exp();\ty.neg_()", 13: "\t\ty.sum().backward()"})
tabs = stale(
    _TABS.save(12, "x.exp()", "`y` is saved here"),
    _TABS.write(12, "y.neg_()", "`neg_` overwrites it here"),
    _TABS.read(13, "y.sum().backward()"),
    suggestions=advice("write out of place", _TABS.edit(12, "y.neg_()", "y = y.neg()")),
)

_CRLF = File("crlf.py", {1: "y = x.exp()\r", 2: "y.neg_()\r\n", 3: "y.sum().backward()\r"})
crlf = stale(
    _CRLF.save(1, "x.exp()", "`y` is saved here"),
    _CRLF.write(2, "y.neg_()", "`neg_` overwrites it here"),
    _CRLF.read(3, "y.sum().backward()"),
    suggestions=advice("write out of place", _CRLF.edit(2, "y.neg_()", "y = y.neg()")),
)

_ITEMS = ", ".join(f"layer_{number}(features)" for number in range(40))
_LONG = File(
    "generated.py",
    {
        1: f"y = combine([{_ITEMS}, x.exp()])",
        2: f"total = [y.neg_(), {_ITEMS}]; total[0].sum().backward()",
        3: f"z = y.mul_({_ITEMS})",
    },
)
long_lines = stale(
    _LONG.save(1, "x.exp()", "`y` is saved here: exp keeps its result"),
    _LONG.write(2, "y.neg_()", "`neg_` overwrites it here"),
    _LONG.read(2, "total[0].sum().backward()"),
    _LONG.label("write", 3, _LONG.lines[3][4:], "`mul_` overwrites it once more"),
    suggestions=advice("write out of place", _LONG.edit(2, "y.neg_()", "y.neg()")),
)

_ONE = File("one.py", {4: "(h.exp() * h.add_(1)).sum().backward()"})
three_on_a_line = stale(
    _ONE.save(4, "h.exp()", "`h.exp()` is saved here: a product keeps its operands"),
    _ONE.write(4, "h.add_(1)", "`add_` overwrites `h` here"),
    _ONE.read(4, "(h.exp() * h.add_(1)).sum().backward()"),
)

_SAME = File("same.py", {6: "    h = F.relu(h, inplace=True)", 9: "h.sum().backward()"})
equal_spans = stale(
    _SAME.save(6, "F.relu(h, inplace=True)", "`h` is saved here: relu keeps its result (version 1)"),
    _SAME.write(6, "F.relu(h, inplace=True)", "`relu_` overwrites it here, in a later iteration (version 1 -> 2)"),
    _SAME.read(9, "h.sum().backward()"),
)

_SPREAD = File(
    "spread.py",
    {
        20: "    out = F.scaled_dot_product_attention(",
        21: "        q, k, v,",
        22: "        is_causal=True,",
        23: "    )",
        24: "    out.mul_(",
        25: "        scale)",
        30: "    out.sum().backward()",
    },
)
several_lines = stale(
    _SPREAD.save(20, "F.scaled_dot_product_attention(\n\n\n    )", "`out` is saved here: attention keeps its result"),
    _SPREAD.write(24, "out.mul_(\n        scale)", "`mul_` overwrites it here"),
    _SPREAD.read(30, "out.sum().backward()"),
    suggestions=advice(
        "write out of place", _SPREAD.edit(24, "out.mul_(\n        scale)", "out = out.mul(\n        scale)")
    ),
)

_FAR = File(
    "far.py",
    {
        9: "y = x.exp()",
        1204: "    logger.debug('%s', {'gradients': [parameter.grad for parameter in net.parameters()]}); y.neg_()",
    },
)
words_beneath = stale(
    _FAR.save(9, "x.exp()", "`y` is saved here"),
    _FAR.write(1204, "y.neg_()", "`neg_` overwrites it here, where there is no room for words beside the caret"),
)


def _small(path: str, *, kept: bool = True) -> Finding:
    file = File(path, {1: "y = x.exp()", 2: "y.neg_()", 3: "y.sum().backward()"}, kept)
    return stale(
        file.save(1, "x.exp()", "`y` is saved here: exp keeps its result (version 0)"),
        file.write(2, "y.neg_()", "`neg_` overwrites it here (version 0 -> 1)"),
        file.read(3, "y.sum().backward()"),
        suggestions=advice("write out of place", file.edit(2, "y.neg_()", "y = y.neg()")),
    )


notebook_cell = _small("<ipython-input-3-5f2b6c1d>")
dash_c = _small("<string>")
stdin = _small("<stdin>")
windows_path = _small("C:\\Users\\ada\\train.py")
missing_source = _small("/gone/since/train.py", kept=False)

_HALF_GONE = File("/gone/since/plugin.py", {88: "    out.zero_()"}, kept=False)
half_missing = stale(
    _SAME.save(6, "F.relu(h, inplace=True)", "`h` is saved here"),
    _SAME.write(9, "h.sum().backward()", "a hook overwrites it while backward runs"),
    _HALF_GONE.label("inside", 88, "out.zero_()", "the write itself"),
)

_EVIL = File("evil.py", {1: "y = x.exp()  # \x1b[31mred\x1b[0m \x9b2J \u202eoverride\u202c \x00", 2: "y.neg_()\x0c"})
control_characters = finding(
    "NC101",
    "stale-save",
    "in-place write to a tensor named \x1b]0;title\x07",
    _EVIL.save(1, "x.exp()", "saved \x1b[2J here"),
    _EVIL.write(2, "y.neg_()", "written here"),
    notes=("first line\nsecond line \x1b[0m",),
    suggestions=advice("remove \x08 them"),
)

_WAS = File("ema2.py", {5: "y = net(x)", 9: "for p in params:", 10: "    p.mul_(2)", 12: "y.backward()"})
_IMPORTS = File("setup_amp.py", {2: "scaler = None"})
edits_in_two_places = finding(
    "NC103",
    "step-before-backward",
    "`p` changes before a backward that needs its old value",
    _WAS.save(5, "net(x)", "`p` is saved here"),
    _WAS.write(10, "p.mul_(2)", "`mul_` overwrites it here"),
    _WAS.read(12, "y.backward()"),
    _IMPORTS.label("create", 2, "scaler = None", "made here"),
    severity="warning",
    count=312,
    suggestions=advice(
        "run backward first",
        Edit(Span("ema2.py", 12, 1, 12, 13), "pass"),
        Edit(Span("ema2.py", 9, 1, 9, 1), "y.backward()\n"),
        _IMPORTS.edit(2, "None", "GradScaler()"),
    ),
)

FINDINGS: dict[str, Finding] = {name: one for name, one in dict(globals()).items() if isinstance(one, Finding)}
