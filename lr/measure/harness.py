"""The model `lr` for EleutherAI's lm-evaluation-harness: runs its tasks with Lookahead
Reasoning. `python -m lr.measure.harness` takes the arguments of `lm_eval`
(`docs/evaluation.md`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from copy import copy
from dataclasses import replace
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from lr.engine.engine import Engine, Run
from lr.errors import LRError, SettingError
from lr.kvcache.branch import BLOCK_SIZE
from lr.model.device import find_device
from lr.model.qwen import CausalLM
from lr.options import make_options
from lr.reasoner import Reasoner
from lr.result import END_OF_THOUGHT, reply
from lr.types import Role


@register_model("lr")
class LookaheadLM(TemplateLM):
    """Answers with `options` of `Reasoner.generate`. A task's own settings override
    them, except that `options` override its greedy decoding and its `max_tokens`."""

    eot_token_id, tokenizer_name = -1, ""  # the checkpoint's, set below

    def __init__(self, target: str, draft: str | None = None, verifier: str | None = None,
                 judge: str | None = None, device: str = "auto", batch_size: int | str = 1,
                 **options: Any) -> None:  # fmt: skip
        super().__init__()
        if make_options(**options).system is not None:
            raise SettingError(
                "the harness writes the prompts: use its --system_instruction."
            )
        self.options, self.batch = (
            options,
            8 if batch_size == "auto" else int(batch_size),
        )
        self.reasoner = Reasoner(
            target, draft, verifier, judge=judge, device=find_device(device)
        )
        self.codec = copy(self.reasoner.codec)
        self.codec.chat = lambda text, **_: self.codec.encode(text)  # type: ignore[method-assign]
        self.engine = Engine(replace(self.reasoner.models, codec=self.codec))
        self.tokenizer, self.tokenizer_name = self.codec.tokenizer, self.codec.name
        self.eot_token_id = min(self.codec.eos_ids)

    def tok_encode(self, string: str, *_: object, **__: object) -> list[int]:
        return self.codec.encode(string)

    def apply_chat_template(
        self, chat_history: Any, add_generation_prompt: bool = True
    ) -> str:
        how = {"add_generation_prompt": add_generation_prompt, "tokenize": False}
        how |= {
            name: on for name, on in self.options.items() if name == "enable_thinking"
        }
        how["continue_final_message"] = not add_generation_prompt
        return str(self.tokenizer.apply_chat_template(chat_history, **how))

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """The answers. A repeated request gets another sample."""
        seen, together = Counter[str](), defaultdict[object, list[Run]](list)
        stops: dict[Run, list[str]] = {}
        for text, kwargs in (request.args for request in requests):
            asked: dict[str, Any] = {**normalize_gen_kwargs(kwargs)}
            usual = {} if asked.pop("do_sample") else {"temperature": 0.0}
            usual["max_tokens"], until = asked.pop("max_gen_toks"), asked.pop("until")
            options = make_options(**{**usual, **self.options, **asked})
            own = replace(options, sample=seen[text])
            together[options].append(
                run := Run(self.engine, self.reasoner.verifier, text, own)
            )
            stops[run] = [stop for stop in until if stop]
            seen[text] += 1
        for runs in together.values():
            for run, _ in self.engine.serve(runs, self.batch):
                run.stopped = said(run, stops[run])[1]
        return [said(run, ends)[0] for run, ends in stops.items()]

    def loglikelihood_rolling(
        self, requests: Any, disable_tqdm: bool = False
    ) -> list[float]:
        found = []
        for tokens in (self.codec.encode(request.args[0]) for request in requests):
            windows = get_rolling_token_windows(
                tokens, self.eot_token_id, self.context, 1
            )
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            found.append(sum(score for score, _ in self._loglikelihood_tokens(pairs)))
        return found

    def _loglikelihood_tokens(
        self, requests: Any, **_: object
    ) -> list[tuple[float, bool]]:
        """log p(wanted | context) of the target, and whether all wanted tokens are the
        likeliest ones. A context that is too long loses its beginning."""
        found, longest, runners = [], self.context, self.engine.runners[Role.TARGET]
        for _text, context, wanted in requests:
            tokens = [*context, *wanted][-longest - 1 :]
            runner = runners.lend(len(tokens) // BLOCK_SIZE + 1)
            branch = runner.open(tokens[:-1])
            [logits] = runner.forward(
                [branch], [len(wanted)]
            )  # [m, v] for m wanted tokens
            runner.close(branch)
            runners.take_back(runner)
            told = logits.float().log_softmax(-1)[range(len(wanted)), wanted].sum()
            found.append((float(told), logits.argmax(-1).tolist() == wanted))
        return found

    @property
    def context(self) -> int:
        if isinstance(model := self.engine.models.target, CausalLM):
            return model.config.max_position_embeddings
        raise SettingError(
            "this task compares probabilities; a model on a server only generates."
        )


def said(run: Run, stops: list[str]) -> tuple[str, bool]:
    """The reply after the thought, up to a stop string, and whether it contained
    one."""
    text, whole = run.result.text, run.question + run.result.text
    if whole.rfind("<think>") > whole.rfind(END_OF_THOUGHT):
        return text, False
    text = reply(text).lstrip() if END_OF_THOUGHT in text else text
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places, default=None)], bool(places)


if __name__ == "__main__":
    try:
        cli_evaluate()
    except LRError as error:
        raise SystemExit(f"error: {error}") from None
