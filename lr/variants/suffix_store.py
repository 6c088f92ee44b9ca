r"""A store of earlier answers, after SuffixDecoding (arXiv 2411.04975): what followed the
last tokens before is proposed again.

    lr run --n_samples 8 --variant suffix_store ...
    lr experiment speedup --repeats 8 --variant suffix_store   # cold and warm, by sample

The real pair in docs/results/variants.md, on rows 136 and 3 (from 0) of GSM8K's test set:

    lr experiment speedup --model TARGET --draft_model DRAFT --draft_weights int4 --dataset gsm8k.jsonl \
        --driver lockstep --problems 2 --repeats 8 --max_tokens 160 \
        --values "sd drafter=ngram acceptance=match" --variant suffix_store

The longest ending of the text that stands in an earlier answer, or earlier in this one,
is continued from there. One part: a drafter with `memory`. The first answer has only its
own text to look into; samples of one question are fast from the second on.

Faithful: suffixes of any length, over all answers of a run, no model. Different: the
paper keeps suffix trees with counts and weighs continuations; here the latest one is
taken, found by a search of the text. It drafts no more tokens than have matched.
"""

from array import array
from collections.abc import Iterable, Sequence

from lr.kvcache.branch import Branch
from lr.reasoner import Reasoner
from lr.spec.drafters import LookupDrafter, earlier_end
from lr.spec.proposal import EMPTY, Proposal
from lr.spec.variant import Variant

BETWEEN = -1  # stands between two texts; no token has this number


class SuffixStore(LookupDrafter):
    """Looks up the last tokens in `store`, the texts of earlier answers, and in the
    branch itself."""

    name = "suffix store"
    shares_state = True
    memory = True

    def __init__(self, store: list[int], longest: int) -> None:
        super().__init__(longest, 2)
        self.store = store

    def _look_up(self, tokens: Sequence[int], k: int) -> Proposal:
        """What followed the longest ending, at most as many tokens as that has."""
        # the branch comes last, so its own earlier text is found first
        text = [*self.store, *tokens]
        data = array("q", text).tobytes()
        # the longest ending that stands somewhere else decides
        for n in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            end = earlier_end(data, n)
            if end is not None:
                # no further than the text in which it was found
                following = [*text[end : end + max(0, min(k, n))], BETWEEN]
                return Proposal.chain(following[: following.index(BETWEEN)])
        return EMPTY

    def forget(self, branches: Iterable[Branch]) -> None:
        """A branch that is closed is a text to remember."""
        for branch in branches:
            self.store += [*branch.tokens, BETWEEN]


def suffix_store(reasoner: Reasoner, *, longest: int = 24) -> Variant:
    """Look up endings of 2 to `longest` tokens; no draft model is needed."""
    # of this variant: a new process, or a cold way of the bench, has an empty one
    store: list[int] = []
    settings = {
        "acceptance": "match",
        "drafter": "ngram",
        "num_speculative_tokens": 16,
    }
    return Variant(drafter=lambda setup: SuffixStore(store, longest), settings=settings)
