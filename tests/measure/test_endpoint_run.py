"""The scheduler on served models: the oracle, the mixes, what goes wrong, what is
refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from endpoint_kit import (
    IDS,
    MANNERS,
    PLAIN,
    QUESTION,
    QUICK,
    TEXT,
    plain_text,
    reasoner,
    serving,
    tokenizer,
)
from fake_server import END, FakeServer, Fault
from reasoner_kit import write_checkpoint, write_foreign_checkpoint

from lr.errors import SettingError
from lr.measure.endpoint.address import Servers
from lr.measure.endpoint.client import EndpointError, StreamPiece
from lr.measure.endpoint.models import spell
from lr.measure.endpoint.writer import ServedWriter, exact_ids
from lr.model.codec import Codec
from lr.reasoner import Reasoner
from lr.spec.variant import Correction, Corrector, Variant
from lr.spec.verifiers.base import Requires, Verifier
from lr.spec.verifiers.named import RandomVerifier
from lr.types import Finish, Origin, Step, Verdict

SCHEDULES = ("sync", "paper", "depth")


@pytest.fixture(scope="module", params=list(MANNERS))
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[FakeServer, FakeServer]]:
    """A target and a draft behind servers of one kind."""
    with (
        serving(MANNERS[request.param]) as target,
        serving(MANNERS[request.param], salt="draft") as draft,
    ):
        yield target, draft


@pytest.fixture(scope="module")
def both(pair: tuple[FakeServer, FakeServer]) -> Iterator[Reasoner]:
    """With the exact verifier, its servers probed once."""
    with reasoner(*pair) as made:
        yield made


def test_exact_lookahead_is_the_plain_greedy_text(
    both: Reasoner, pair: tuple[FakeServer, FakeServer]
) -> None:
    """The end-to-end oracle: whatever the schedule, depth and width, the text that the
    target's server writes at one go.
    """
    prompt = spell(both.codec, both.codec.chat(QUESTION))
    wanted = plain_text(pair[0], prompt)
    assert both.generate(QUESTION, mode="ar", temperature=0).text == wanted
    shapes = ((4, 1), (2, 2)) * 2
    first = int(
        pair[0].manners.ids
    )  # so every pair of server, schedule and shape occurs
    for schedule, (depth, width) in zip(SCHEDULES, shapes[first:], strict=False):
        result = both.generate(
            QUESTION, temperature=0, schedule=schedule, depth=depth, width=width
        )
        assert result.text == wanted, (schedule, depth, width)
        assert result.finished and result.stats.accepted > 0
        assert {step.origin for step in result.steps} >= {
            Origin.ACCEPTED,
            Origin.CORRECTION,
        }


def test_seeded_sampling_is_plain_sampling(both: Reasoner) -> None:
    """Where seeds are heeded the oracle holds at any temperature, and the same seed
    gives the same answer.
    """
    how = {"temperature": 1.0, "max_step_tokens": 12, "max_tokens": 60}
    plain = both.generate(QUESTION, mode="ar", **how)
    assert both.generate(QUESTION, schedule="paper", depth=3, **how).text == plain.text
    assert both.generate(QUESTION, depth=4, width=2, **how).text == plain.text
    assert both.generate(QUESTION, mode="ar", seed=1, **how).text != plain.text


def test_steps_keep_to_their_rules(both: Reasoner) -> None:
    """Boundaries, caps and the budget are what they are with a model at hand."""
    result = both.generate(QUESTION, temperature=0, max_step_tokens=7, max_tokens=40)
    assert len(result.tokens) <= 40
    assert result.text == both.codec.decode(result.tokens)
    for step in result.steps:
        assert len(step.tokens) <= 7
        inner = step.text.lstrip()
        assert "\n\n" not in inner[:-2]
        assert (step.finish is Finish.BOUNDARY) == inner.endswith("\n\n")
    assert {Finish.BOUNDARY, Finish.LENGTH} <= {step.finish for step in result.steps}


def test_an_accepted_draft_is_the_drafts_text(
    pair: tuple[FakeServer, FakeServer],
) -> None:
    with reasoner(pair[0], pair[1], RandomVerifier(1.0)) as both:
        result = both.generate(QUESTION, temperature=0)
        prompt = spell(both.codec, both.codec.chat(QUESTION))
        assert result.text == plain_text(pair[1], prompt)
        assert {step.origin for step in result.steps} == {Origin.ACCEPTED}


@pytest.mark.parametrize("manners", ["ids", "text"])
@pytest.mark.parametrize("served", ["target", "draft"])
def test_local_and_served_models_mix(tmp_path: Path, manners: str, served: str) -> None:
    """The local one is a random network; with the exact verifier the target's own text
    comes out all the same.
    """
    local = write_checkpoint(tmp_path / "local", seed=3)
    with serving(MANNERS[manners]) as server:
        models = (server, str(local)) if served == "target" else (str(local), server)
        with reasoner(*models) as mixed:
            how = {"temperature": 0, "max_tokens": 50, "max_step_tokens": 20}
            plain = mixed.generate(QUESTION, mode="ar", **how)
            for schedule in SCHEDULES:
                result = mixed.generate(QUESTION, schedule=schedule, depth=2, **how)
                assert result.text == plain.text
                assert result.stats.drafted > 0
            if served == "draft":
                step = mixed.generate(
                    QUESTION, mode="lr+sd", drafter="step", acceptance="match", **how
                )
                assert step.tokens == plain.tokens


def test_a_draft_with_another_tokenizer(tmp_path: Path) -> None:
    """It speaks text, so its steps are taken as text, and the prompt is put by its own
    template."""
    foreign = write_foreign_checkpoint(tmp_path / "foreign")
    (foreign / "chat_template.jinja").write_text(
        "ASK {{ messages[0]['content'] }} assistant\n"
    )
    with serving(PLAIN) as target, serving(PLAIN, salt="draft") as draft:
        names = target.address(), draft.address("tiny-draft")
        servers = Servers(draft_tokenizer=str(foreign), retry=QUICK)
        with Reasoner(*names, "exact", servers=servers) as both:
            prompt = spell(both.codec, both.codec.chat(QUESTION))
            result = both.generate(QUESTION, temperature=0)
            assert result.text == plain_text(target, prompt)
            asked = [
                body["prompt"]
                for body in draft.log.bodies
                if QUESTION in body["prompt"]
            ]
            assert asked and all(text.startswith(f"ASK {QUESTION}") for text in asked)
        with pytest.raises(SettingError, match="different vocabularies"):
            reasoner(target, str(foreign))


def test_a_beginning_that_the_server_adds_is_not_sent_twice(tmp_path: Path) -> None:
    """The chat template writes a beginning-of-sequence token, and so does the server in
    front of every text.
    """
    folder = write_checkpoint(tmp_path / "begun", seed=1)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {
            "<|endoftext|>": {
                "id": "<|endoftext|>",
                "ids": [431],
                "tokens": ["<|endoftext|>"],
            }
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings | {"bos_token": "<|endoftext|>"})
    )
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text("<|endoftext|>" + template)
    for adds in (False, True):
        with serving(PLAIN) as server:
            server.usage = lambda prompt, extra=adds: (
                len(tokenizer().encode(prompt)) + extra
            )
            with Reasoner(
                server.address(),
                None,
                servers=Servers(tokenizer=str(folder), retry=QUICK),
            ) as alone:
                text = alone.generate(QUESTION, mode="ar", temperature=0).text
                sent = [
                    body["prompt"]
                    for body in server.log.bodies
                    if QUESTION in body["prompt"]
                ]
                assert all(
                    prompt.startswith("<|endoftext|>") is not adds for prompt in sent
                )
                assert text == plain_text(server, sent[0])


def test_everything_is_in_a_detailed_trace(both: Reasoner) -> None:
    run = both.run(QUESTION, temperature=0, detailed=True)
    result = run.finish()
    assert result.text == both.generate(QUESTION, temperature=0).text
    assert (
        result.stats.target_passes >= len(result.steps) / 2
        and result.stats.target_seconds > 0
    )


def test_rejected_work_is_hung_up_on() -> None:
    """Requests of released nodes are cancelled: the servers see the connections close.

    Nothing depends on the machine's speed. The draft's server answers nothing about a
    prefix that the draft has written itself, so such a request ends only by hanging up;
    and the target's server says nothing before it has two requests at a time.
    """
    with serving(PLAIN) as target, serving(PLAIN, salt="else") as draft:
        babbled = target.write

        def together(text: str, seed: int | None) -> str:
            deadline = time.monotonic() + 60
            while (
                target.log.most < 2 and QUESTION in text and time.monotonic() < deadline
            ):
                time.sleep(0.005)
            return babbled(text, seed)

        draft.write = lambda text, seed: " Bob" if not text.endswith("Bob") else "\n\n"
        draft.hold = lambda prompt: " Bob" in prompt
        with reasoner(target, draft) as both:
            target.write = together
            result = both.generate(
                QUESTION, temperature=0, depth=4, max_tokens=60, max_step_tokens=30
            )
            assert result.stats.accepted == 0
        deadline = time.monotonic() + 60
        while (target.log.open or draft.log.open) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (target.log.open, draft.log.open) == (0, 0)
        assert draft.log.abandoned > 0
        assert target.log.most > 1, (
            "target steps of several nodes are in flight together"
        )


@pytest.mark.parametrize("what", ["cut", "garbage", "reset"])
def test_broken_streams_change_nothing(
    both: Reasoner, pair: tuple[FakeServer, FakeServer], what: str
) -> None:
    wanted = both.generate(QUESTION, temperature=0).text
    for server in pair:
        server.faults = [
            Fault(what=what, after=1),
            Fault(429),
            Fault(what=what, after=3),
        ]
    result = both.generate(QUESTION, temperature=0)
    assert not pair[0].faults and not pair[1].faults
    assert result.text == wanted


@pytest.mark.parametrize("role", [0, 1], ids=["target", "draft"])
def test_a_server_that_dies_in_the_middle(role: int) -> None:
    """The run ends with the server's name; what was emitted stays, and nothing else
    hangs."""
    slow = replace(PLAIN, pause=0.003)
    with serving(slow) as target, serving(slow, salt="draft") as draft:
        servers = (target, draft)
        with reasoner(target, draft) as both:
            run = both.run(QUESTION, temperature=0)
            steps = iter(run)
            first = next(steps)
            servers[role].dead = True
            servers[role].faults = [Fault(what="cut", after=0)] * 99
            with pytest.raises(
                EndpointError, match=rf"{servers[role].server} .*4 times in a row"
            ):
                list(steps)
            assert run.result.steps[0] == first
            servers[role].dead, servers[role].faults = False, []
            assert both.generate(QUESTION, temperature=0).steps[0].text == first.text


def test_ids_outside_the_vocabulary_are_a_wrong_tokenizer() -> None:
    with serving(IDS) as target, reasoner(target, None) as alone:
        encode = target.tokenizer.encode

        class Shifted:
            decode = staticmethod(target.tokenizer.decode)

            def encode(self, text: str, **settings: object) -> list[int]:
                return [i + 400 for i in encode(text, **settings)]

        target.tokenizer = Shifted()
        with pytest.raises(
            EndpointError,
            match=r"wrote token id \d+; the tokenizer of tiny-target has ids 0 to 460",
        ):
            alone.generate(QUESTION, mode="ar", temperature=0)


REFUSALS = [
    (
        {"mode": "sd"},
        IDS,
        PLAIN,
        "acceptance 'reject' needs something that tiny-target at .*proposed.*Use mode 'ar'",
    ),
    (
        {"mode": "lr+sd", "drafter": "ngram"},
        IDS,
        PLAIN,
        "drafter 'ngram'.*Use mode 'lr'",
    ),
    (
        {"segmenter": "fixed", "temperature": 0},
        TEXT,
        TEXT,
        "segmenter 'fixed'.*token ids",
    ),
    (
        {"top_k": 5},
        PLAIN,
        PLAIN,
        "top_k 5 needs something that tiny-target.*Give top_k 0",
    ),
    (
        {"min_p": 0.1},
        PLAIN,
        PLAIN,
        "min_p 0.1 needs something that tiny-target.*Give min_p 0",
    ),
    (
        {"coupling": "shared"},
        PLAIN,
        replace(PLAIN, seeds=False),
        "tiny-draft.*seeds that determine the draws.*'independent'",
    ),
]


@pytest.mark.parametrize(("options", "first", "second", "says"), REFUSALS)
def test_what_an_endpoint_lacks_is_refused(
    options: dict, first: object, second: object, says: str
) -> None:
    with (
        serving(first) as target,
        serving(second, salt="draft") as draft,
        reasoner(target, draft) as both,
    ):  # type: ignore[arg-type]
        before = len(target.log.bodies)
        with pytest.raises(SettingError, match=says):
            both.generate(QUESTION, **options)
        assert not [
            body
            for body in target.log.bodies[before:]
            if QUESTION in str(body["prompt"])
        ]


def test_shared_noise_needs_the_same_noise(tmp_path: Path) -> None:
    local = str(write_checkpoint(tmp_path / "local", seed=3))
    with serving(PLAIN) as server:
        with (
            reasoner(server, local) as mixed,
            pytest.raises(SettingError, match="noise of this process"),
        ):
            mixed.generate(QUESTION, coupling="shared", temperature=1.0, top_k=0)
        with (
            reasoner(local, server) as mixed,
            pytest.raises(
                SettingError, match="drafter 'draft' needs something that tiny-draft"
            ),
        ):
            mixed.generate(QUESTION, mode="lr+sd", drafter="draft", temperature=0)
    with (
        serving(PLAIN) as target,
        serving(PLAIN, salt="draft") as draft,
        reasoner(target, draft) as both,
    ):
        how = {"temperature": 1.0, "max_tokens": 80}
        rates = [
            both.generate(QUESTION, coupling=one, **how).stats.step_acceptance
            for one in ("shared", "independent")
        ]
        assert rates[0] > rates[1]


@pytest.mark.parametrize("segmenter", ["sentence", "discourse"])
def test_other_segmenters(
    both: Reasoner, pair: tuple[FakeServer, FakeServer], segmenter: str
) -> None:
    prompt = spell(both.codec, both.codec.chat(QUESTION))
    result = both.generate(QUESTION, temperature=0, segmenter=segmenter)
    assert result.text == plain_text(pair[0], prompt)


def test_text_that_the_tokenizer_would_change_is_kept() -> None:
    codec = Codec.load("tiny-target")
    for text in ("So we get 7.\n\n", "e\u0301 \U0001f600", "<|im_end|> is said", ""):
        assert codec.decode(exact_ids(codec, text)) == text


def test_a_step_of_more_tokens_than_it_may_have_is_cut() -> None:
    """A server counts its own tokens; ours may be more (here bytes)."""
    with serving(PLAIN) as target:
        target.write = lambda text, seed: (
            END
            if len(text.rpartition("assistant\n")[2]) > 60
            else "\u20ac\u20ac\u20ac "
        )
        with reasoner(target, None) as alone:
            result = alone.generate(
                QUESTION, mode="ar", temperature=0, max_step_tokens=8, max_tokens=20
            )
    assert len(result.tokens) <= 20 and all(
        len(step.tokens) <= 8 for step in result.steps
    )
    text = result.text.rstrip(
        "\ufffd"
    )  # a budget that ends inside a character leaves what fits of it
    assert "\ufffd" not in text and text.startswith("\u20ac\u20ac")


class Sees(Verifier):
    """A verifier that is asked on the spot, between requests."""

    name = "sees"

    def judge(self, pairs: list) -> list[Verdict]:
        return [
            Verdict(pair.draft.tokens == pair.target.tokens, "seen") for pair in pairs
        ]


def test_verifiers_of_ones_own(pair: tuple[FakeServer, FakeServer]) -> None:
    with reasoner(pair[0], pair[1], Sees()) as both:
        prompt = spell(both.codec, both.codec.chat(QUESTION))
        assert both.generate(QUESTION, temperature=0).text == plain_text(
            pair[0], prompt
        )


@pytest.mark.parametrize("verifier", ["likelihood", "score", "judge:0.8"])
def test_verifiers_that_read_what_is_not_given(verifier: str) -> None:
    with serving(TEXT) as server:
        judge = server.address("tiny-judge") if verifier.startswith("judge") else None
        names = server.address(), server.address("tiny-draft")
        with pytest.raises(
            SettingError,
            match=rf"verifier '{verifier}' needs something that tiny-.* at .*log-probabilities",
        ):
            Reasoner(*names, verifier, judge=judge, servers=Servers(retry=QUICK))


@pytest.mark.parametrize("served", ["target", "draft"])
def test_probabilities_that_no_server_gives_are_refused(
    tmp_path: Path, served: str
) -> None:
    """A verifier that needs what target and draft sample from."""
    local, verifier = str(write_checkpoint(tmp_path / "local", seed=3)), Sees()
    verifier.requires = Requires.SAMPLING_LOGPROBS
    with serving(IDS) as server:
        models = (server, local) if served == "target" else (local, server)
        says = (
            f"verifier 'sees' needs something that tiny-{served} at .*log-probabilities"
        )
        with (
            reasoner(*models, verifier) as mixed,
            pytest.raises(SettingError, match=says),
        ):
            mixed.generate(QUESTION, temperature=0)


def test_a_step_does_not_end_inside_a_character() -> None:
    """In text mode a segmenter of one's own sees bytes, and may fire at the first of
    two."""
    writer = object.__new__(ServedWriter)
    writer.model, writer.config = (
        SimpleNamespace(ids=False, chain=None),
        SimpleNamespace(),
    )
    segmenter = SimpleNamespace(feed=lambda token: ~token == "é".encode()[0])
    job = SimpleNamespace(limit=50, tokens=[], segmenter=segmenter)
    writing = SimpleNamespace(job=job, units=[])
    assert writer._read(writing, StreamPiece("aé b")) is Finish.BOUNDARY  # type: ignore[arg-type]
    assert bytes(~token for token in writing.units).decode() == "aé"


class Begins(Sees, Corrector):
    """Rejects every draft step, and goes on from its first token."""

    requires = Requires.NOTHING

    def judge(self, pairs: list) -> list[Verdict]:
        return [Verdict(aligned=False, why="never") for _ in pairs]

    def begin(self, correction: Correction) -> tuple[int, ...]:
        whole = (pair.draft.tokens for pair in correction.rejected)
        return next(whole, ())[:1]


class Keeps(Begins):
    def keep(self, correction: Correction, step: Step, number: float) -> bool:
        return number < sum(correction.logprobs)


def test_log_probabilities_of_drawn_tokens_are_refused() -> None:
    """A variant's `keep` and `may_follow` are given them, and no server gives them."""
    both_read = {
        "target": (
            Variant(Keeps(), corrector=Keeps()),
            "corrector Keeps, .*Use a corrector with",
        ),
        "draft": (
            Variant(may_follow=lambda node, step, logprobs: True),
            "may_follow .*without it",
        ),
    }
    with (
        serving(IDS) as target,
        serving(IDS, salt="draft") as draft,
        reasoner(target, draft) as both,
    ):
        for role, (variant, says) in both_read.items():
            before = len(target.log.bodies)
            message = says.replace(
                " .*",
                f" .*needs something that tiny-{role} at .*log-probabilities.*",
                1,
            )
            with pytest.raises(SettingError, match=message):
                both.generate(QUESTION, variant=variant)
            assert QUESTION not in str(target.log.bodies[before:])


def test_a_corrector_gives_the_beginning_of_a_step(
    both: Reasoner, pair: tuple[FakeServer, FakeServer]
) -> None:
    """The step begins with the draft's first token, in text mode too, and the target
    goes on."""
    variant = Variant(made := Begins(), corrector=made)
    result = both.generate(QUESTION, variant=variant, temperature=0, max_tokens=60)
    assert {step.origin for step in result.steps[:3]} == {Origin.CORRECTION}
    prompt = spell(both.codec, both.codec.chat(QUESTION))
    for step in result.steps[:3]:
        first = both.codec.decode(step.tokens[:1])
        assert step.rejected is not None and step.rejected.startswith(first)
        rest = plain_text(pair[0], prompt + first)
        assert step.text.startswith(first) and rest.startswith(step.text[len(first) :])
        prompt += step.text
