"""`noclobber explain OPERATOR`: names are found, every way of calling is tried, formulas are those of this torch."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from noclobber.model.reports.probe import Case, OperatorPage
from noclobber.ops import formulas
from noclobber.ops.explaining import cases_of_all, page_of
from noclobber.ops.probing import signature_of
from noclobber.render.tables.operator import operators, page
from noclobber.rules.shared.keeps import row_of
from tests.rules.test_keeps import NAMED


def told(name: str) -> OperatorPage:
    found = page_of(name)
    assert found is not None
    return found


def rows(name: str) -> dict[tuple[str, tuple[str, ...]], tuple[str, ...]]:
    return {(case.call, case.needs): case.kept for case in told(name).cases}


@pytest.mark.smoke
def test_exp_keeps_its_result() -> None:
    assert told("exp").cases == (Case("exp(self)", ("self",), ("result",), ("self",)),)


def test_what_mul_keeps_depends_on_who_requires_a_gradient() -> None:
    found = rows("torch.mul")
    call = "mul(self, other)"
    assert found[call, ("self",)] == ("other",)
    assert found[call, ("other",)] == ("self",)
    assert found[call, ("self", "other")] == ("self", "other")
    assert found["mul(self, Scalar other)", ("self",)] == ()


def test_pow_has_a_row_for_a_number_and_one_for_a_tensor() -> None:
    found = rows("pow")
    assert found["pow(self, Scalar exponent)", ("self",)] == ("self",)
    assert found["pow(self, exponent)", ()] == ("self", "exponent", "result")


def test_batch_norm_in_training_and_in_evaluation() -> None:
    found = told("nn.BatchNorm2d").cases
    assert [case.call for case in found] == ["BatchNorm2d(input) in training", "BatchNorm2d(input) in evaluation"]
    assert [case.copied for case in found] == [True, False]


def test_what_is_the_same_in_both_is_said_once() -> None:
    assert [case.call for case in told("nn.ReLU").cases] == ["ReLU(input)"]


@pytest.mark.parametrize(
    ("name", "copied"), [("exp", False), ("relu", False), ("add", False), ("pow", True), ("sin", True)]
)
def test_the_in_place_form_says_whether_it_keeps_a_copy(name: str, copied: bool) -> None:
    assert {case.copied for case in told(name).in_place} == {copied}


def test_a_product_in_place_keeps_a_copy_where_the_other_factor_needs_it() -> None:
    copied = {case.needs: case.copied for case in told("mul").in_place if "Scalar" not in case.call}
    assert copied == {("self",): False, ("other",): True, ("self", "other"): True}


SPELLINGS = (
    "relu_ Tensor.relu_ F.relu_ torch.nn.functional.relu torch.linalg.inv linalg.inv F.gelu nn.LSTM zero_ aten::mul"
)


@pytest.mark.parametrize("name", SPELLINGS.split())
def test_names_are_found_as_programs_write_them(name: str) -> None:
    assert told(name).cases


@pytest.mark.parametrize("name", ["foo", "torch.foo", "os.system", "mylib::foo", "torch", "", ".", "::", "a::", "F."])
def test_what_is_no_operator_is_none(name: str) -> None:
    assert page_of(name) is None


def test_a_custom_operator_is_imported_by_its_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("cubes.py").write_text("""
import torch
@torch.library.custom_op("cubes::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return x**3
cube.register_autograd(lambda ctx, gradient: 3 * ctx.saved_tensors[0] ** 2 * gradient,
                       setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))
""")
    monkeypatch.syspath_prepend(tmp_path)
    assert [case.kept for case in told("cubes::cube").cases] == [("x",)]
    del sys.modules["cubes"]


def test_the_formula_is_that_of_the_installed_torch() -> None:
    (formula,) = told("exp").formulas
    assert formula.text.splitlines()[:2] == ["exp(Tensor self) -> Tensor", "  self: grad * result.conj()"]
    assert formula.kept == formula.probed == ("result",)


def test_a_formula_that_says_more_than_the_probe_is_told_as_both() -> None:
    assert "note: the formula computes with other, self; the calls above kept other" in page(told("nn.Dropout"))


def test_sizes_and_types_in_a_formula_keep_nothing() -> None:
    entry = "f(Tensor self, Tensor other) -> (Tensor values, Tensor indices)\n"
    entry += "  self: g(grad, self.sym_sizes(), other.scalar_type(), indices)\n  values: h(self_t, other)"
    assert formulas.kept_by_formula(entry) == {"indices"}


def test_a_torch_without_its_formulas_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formulas, "find_spec", lambda _: None)
    formulas._entries.cache_clear()
    try:
        assert told("exp").formulas == ()
    finally:
        formulas._entries.cache_clear()


def test_the_table_of_all_has_most_operators_and_is_markdown_too() -> None:
    cases = list(cases_of_all())
    assert len({one.call for one in cases}) > 400
    table = operators(cases, markdown=True).splitlines()
    assert table[:2] == ["| call | requires grad | kept | free |", "|---|---|---|---|"]
    assert "| exp(self) | self | result | self |" in table
    assert operators(cases).splitlines()[0].split() == ["call", "requires", "grad", "kept", "free"]
    assert len(set(table)) == len(table)
    assert not re.search(r"\bk?w?args\b", "".join(table))
    for width in (80, 100, 120):
        assert max(map(len, operators(cases, width).splitlines())) <= width


def test_one_thread_is_used_for_the_table_alone() -> None:
    threads = torch.get_num_threads()
    next(cases := cases_of_all())
    assert torch.get_num_threads() == 1
    cases.close()
    assert torch.get_num_threads() == threads


def test_a_function_that_chooses_between_two_has_the_names_of_one() -> None:
    assert list(signature_of(torch.nn.functional.adaptive_max_pool2d).parameters)[:2] == ["input", "output_size"]
    assert [one.call for one in told("torch.einsum").cases][:1] == ["einsum(str equation, Tensor[] tensors)"]


def test_what_the_rules_say_is_what_the_probe_finds() -> None:
    """The table of the rules names no field that a call of the operator does not keep."""
    asked = 0
    for name in NAMED:
        found = page_of(f"nn.{name}" if name[0].isupper() else name)
        for formula in found.formulas if found is not None else ():
            row = row_of(formula.node)
            if row is not None:
                asked += 1
                assert set(row.fields.split()) <= set(formula.probed), (name, formula.node)
    assert asked > 40


def test_explaining_changes_no_random_numbers_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(5)
    right = torch.rand(1)
    torch.manual_seed(5)
    told("nn.Dropout")
    told("cholesky")
    assert torch.equal(torch.rand(1), right)
    assert capfd.readouterr() == ("", "")
