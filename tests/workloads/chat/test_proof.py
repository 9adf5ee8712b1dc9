"""A template that does not end, takes all memory, or draws, is refused by name; the others are not."""

import pytest

from lib.errors import BadInput
from tests.workloads.chat.conftest import CHATML, template_of
from workloads.chat import proof
from workloads.chat.template import made_of

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
HOSTILE = {
    "a loop": (LOOP, "does not end within 0.5 seconds"),
    "a power": ("{{ 10 ** (10 ** 8) }}", "does not end within 0.5 seconds"),
    "a long text": ("{% set x = 'a' * 100000000000 %}", "takes more than 1 GiB of memory"),
    "doubling": (
        "{% set n = namespace(x='aaaaaaaaaa') %}{% for a in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "takes more than 1 GiB of memory|does not end",
    ),
    "a draw": ("{% for m in messages %}{{ range(9) | random }}{% endfor %}", "writes the same conversation otherwise"),
    "a draw in long talks": (
        "{% if messages | length > 9 %}{{ range(99999) | random }}{% endif %}", "writes the same conversation otherwise"
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def half_a_second(monkeypatch):
    monkeypatch.setattr(proof, "SECONDS", 0.5)
    monkeypatch.setattr(proof, "_proved", set())


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_template_without_an_end_or_a_bound_is_refused_by_name(kind):
    code, reason = HOSTILE[kind]
    with pytest.raises(BadInput, match=f"The chat template of the base .*({reason})"):
        template_of(code + CHATML)


def test_a_row_on_which_alone_a_template_does_not_end_is_stopped():
    template = template_of("{% if messages[0].content == 'now' %}" + LOOP + "{% endif %}" + CHATML)
    assert template.render([("user", "then")])
    with pytest.raises(BadInput, match="does not end within"):
        template.prompt((("user", "now"),))


def test_a_template_that_cannot_be_used_is_named_as_the_bases(tmp_path):
    tokenizer = template_of().tokenizer
    tokenizer.save_pretrained(tmp_path)
    values = {
        "tokenizer": tmp_path / "tokenizer.json",
        "specials": {"eos_token": "<|im_end|>"},
        "stops": [],
    }
    assert made_of({**values, "template": CHATML}).render([("user", "x")])
    for template, kind in (
        ("{% if %}", "Expected an expression"),
        ("{{ raise_exception('no') }}", "no"),
    ):
        with pytest.raises(
            BadInput, match=f"The chat template of the base cannot be used .*{kind}"
        ):
            made_of({**values, "template": template})
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(BadInput, match="The tokenizer that the run keeps cannot be used"):
        made_of({**values, "template": CHATML})


def test_a_template_that_asks_for_the_day_writes_that_of_the_run(tmp_path):
    tokenizer = template_of().tokenizer
    tokenizer.save_pretrained(tmp_path)
    template = "{{ strftime_now('%d %b %Y') }}" + CHATML
    values = {
        "tokenizer": tmp_path / "tokenizer.json",
        "specials": {"eos_token": "<|im_end|>"},
        "stops": [],
    }
    text = made_of({**values, "template": template, "date": "2024-07-26"}).render([("user", "x")])
    assert text.startswith("26 Jul 2024<|im_start|>")
