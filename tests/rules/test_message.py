"""Pasted error texts: every wording of the stale-save message, and plain words for any text or traceback."""

from __future__ import annotations

import pytest

from noclobber.rules import catalogue
from noclobber.rules.shared.message import StaleMessage, explanation, parse, rule_of_message
from noclobber.rules.shared.texts import printed

from .texts import ORDINARY, paragraphs

OTHERS = paragraphs(ORDINARY)

HEAD = "one of the variables needed for gradient computation has been modified by an inplace operation"
OLD_HINT = (
    "Hint: enable anomaly detection to find the operation that failed to compute its gradient, "
    "with torch.autograd.set_detect_anomaly(True)."
)
GOOD_LUCK = (
    "Hint: the backtrace further above shows the operation that failed to compute its gradient. "
    "The variable in question was changed in there or anywhere later. Good luck!"
)
EXP = "[torch.FloatTensor [3, 4]], which is output 0 of {node}, is at version 3; expected version 0 instead."


@pytest.mark.parametrize(
    "node", ["Exp", "ExpBackward", "ExpBackward0", "T1", "torch::autograd::CopyBackwards", "<unknown>"]
)
@pytest.mark.parametrize("hint", ["", f" {OLD_HINT}", f" {GOOD_LUCK}"])
def test_the_producer_in_every_spelling(node: str, hint: str) -> None:
    message = parse(f"RuntimeError: {HEAD}: {EXP.format(node=node)}{hint}")
    assert message == StaleMessage("torch.FloatTensor", (3, 4), node, 3, 0)
    assert message.writes == 3


@pytest.mark.parametrize("comma", ["", ","])
def test_no_producer_means_a_leaf(comma: str) -> None:
    message = parse(f"{HEAD}: [torch.cuda.HalfTensor [64]]{comma} is at version 2; expected version 1 instead.")
    assert message == StaleMessage("torch.cuda.HalfTensor", (64,), "", 2, 1)


def test_a_scalar_and_a_meta_tensor() -> None:
    text = f"{HEAD}: [MetaFloatType []], which is output 1 of Split, is at version 1; expected version 0 instead"
    assert parse(text) == StaleMessage("MetaFloatType", (), "Split", 1, 0)


def test_prefixes_and_line_breaks_of_launchers_and_pytest() -> None:
    wrapped = f"{HEAD}:\n    {EXP.format(node='Exp')}".replace(" gradient computation", "\n  gradient computation")
    for prefix in ("[rank0]: ", "E   ", "> ", "| "):
        text = "\n".join(
            prefix + line for line in f"Traceback (most recent call last):\nRuntimeError: {wrapped}".split("\n")
        )
        assert parse(text) == StaleMessage("torch.FloatTensor", (3, 4), "Exp", 3, 0), prefix


@pytest.mark.parametrize("number", ["[3, 4]", "version 3", "version 0"])
def test_a_number_that_is_too_long_to_be_read(number: str) -> None:
    longer = number.replace("3", "3" * 5000).replace("0", "1" * 5000)
    text = f"{HEAD}: {EXP.format(node='Exp').replace(number, longer)}"
    assert parse(text) == StaleMessage()
    assert "does not say which" in explanation(text)


def test_the_oldest_wording_names_nothing() -> None:
    assert parse(f"RuntimeError: {HEAD}") == StaleMessage()
    assert "does not say which" in explanation(f"RuntimeError: {HEAD}")


def test_another_text_is_no_stale_message() -> None:
    assert parse("Trying to backward through the graph a second time") is None


def test_the_words_for_an_activation() -> None:
    words = explanation(f"{HEAD}: {EXP.format(node='SigmoidBackward0')}") or ""
    assert "was written 3 times between its save and backward (saved at version 0, found at version 3)" in words
    assert "produced the tensor, and most likely needs it too: sigmoid keeps its own result" in words
    assert "NC101 stale-save:" in words
    assert "NC103 step-before-backward:" not in words
    assert words.rstrip().split("\n")[-1].startswith("run the program for the exact lines: `noclobber run train.py`")


@pytest.mark.parametrize("node", ["TBackward", "T", "AsStridedBackward0", "AsStrided"])
def test_the_words_for_a_stepped_weight(node: str) -> None:
    stepped = (
        f"{HEAD}: [torch.FloatTensor [4, 4]], which is output 0 of {node}, is at version 2; expected version 1 instead"
    )
    words = explanation(stepped) or ""
    assert "most likely an optimizer: linear saves its weight transposed" in words
    assert "62 %" in words
    assert "NC103 step-before-backward:" in words
    assert "was written 1 time between" in words


def test_the_words_for_a_leaf() -> None:
    fresh = explanation(f"{HEAD}: [torch.FloatTensor [4]] is at version 1; expected version 0 instead") or ""
    stepped = explanation(f"{HEAD}: [torch.FloatTensor [4]] is at version 8; expected version 7 instead") or ""
    assert "a parameter, a buffer" in fresh
    assert "most likely an optimizer" not in fresh
    assert "most likely an optimizer: the tensor was written before" in stepped


def test_another_template_gives_the_page_of_its_rule() -> None:
    text = "Traceback ...\nRuntimeError: Trying to backward through the graph a second\ntime (or directly access ...)"
    words = explanation(text) or ""
    assert words.startswith("NC104 freed-graph:")


def test_a_text_that_is_no_error_about_writing_in_place_has_no_explanation() -> None:
    assert explanation("ZeroDivisionError: division by zero") is None


@pytest.mark.parametrize(
    "words", ["modified by an inplace operation", "Variable was modified by an\nin-place operation"]
)
def test_the_plain_words_of_the_message_are_enough(words: str) -> None:
    assert "the message does not say which" in (explanation(words) or "")


def test_a_batch_of_matrices_is_no_weight() -> None:
    of_batch = (
        f"{HEAD}: [torch.FloatTensor [8, 4, 4]], which is output 0 of AsStrided, is at version 2; expected version 1"
    )
    assert "most likely an optimizer" not in (explanation(f"{of_batch} instead") or "")


def test_rule_of_message_sees_a_stale_message_however_wrapped() -> None:
    for text in (HEAD, f"[rank0]: RuntimeError: {HEAD}: {EXP.format(node='Exp')}", HEAD.replace(" ", "\n")):
        rule = rule_of_message(text)
        assert rule is not None
        assert rule.code == "NC101"


@pytest.mark.parametrize(
    ("piece", "code"),
    [
        ("one of the variables needed for gradient computation has bee", "NC101"),
        ("RuntimeError: one of the variables needed\n  for gradient compu", "NC101"),
        ("Trying to backward through the graph a sec", "NC104"),
        ("retain_graph=True if you need to backward", "NC104"),
        ("a view of a leaf Variable that requires gr", "NC302"),
        ("ctional.py line 3\nRuntimeError: a view of a leaf Variable that\nrequires grad", "NC302"),
        ("modified inplace. This view was crea", "NC305"),
        ("vmap: index_put_(self, *extra_args) is not possible beca", "NC310"),
        ("Some elements marked as dirty during the forw", "NC313"),
    ],
)
def test_a_piece_of_a_text_is_enough(piece: str, code: str) -> None:
    words = explanation(piece) or ""
    assert [line[:5] for line in words.split("\n") if line.startswith("NC")] == [code]


def test_a_piece_of_several_texts_lists_them() -> None:
    words = explanation("that requires grad is being used in an") or ""
    assert [line[2:7] for line in words.split("\n") if line.startswith("  NC")] == ["NC301", "NC302"]
    assert "`noclobber explain CODE`" in words


def test_a_text_that_may_be_cut_short_names_the_other_rules_too() -> None:
    words = explanation("Output 0 of F is a view and is being modified inplace.") or ""
    assert words.startswith("NC303 multi-view-write: ")
    assert "the text seems cut short; it may also be one of\n  NC305 function-view-write" in words


@pytest.mark.parametrize("text", ["is a view", "the quick brown fox jumps", "backward", "the tensor", *OTHERS])
def test_what_is_no_distinctive_piece_has_no_explanation(text: str) -> None:
    assert explanation(text) is None


def test_the_known_texts_are_those_that_the_rules_recognise() -> None:
    words = ("no_grad", "(aten::mul_)", "aten::mul_(self,", "_unsafe_set_version_counter()")
    for code, text in ((rule.code, printed(one)) for rule in catalogue() for one in rule.texts):
        filled = [text, *(text.replace("*", word, times) for word in words for times in (1, -1))]
        recognised = {rule.code for rule in map(rule_of_message, filled) if rule is not None}
        assert recognised == {code}, text
