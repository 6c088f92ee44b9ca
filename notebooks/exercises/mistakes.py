"""Answers that look right and are wrong. Each is the solution with some lines changed,
and says why one might write it so. The grader compares an answer with all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SOLUTIONS = Path(__file__).parent / "solutions"


@dataclass(frozen=True, eq=False)
class Mistake:
    """The mistake that an answer is said to behave like: its name, why one makes it, and
    the lines of the solution that it replaces."""

    name: str
    why: str
    changes: dict[str, str]

    def source(self, exercise: str) -> str:
        """The solution of the exercise with this mistake in it."""
        solution = (SOLUTIONS / f"{exercise}.py").read_text(encoding="utf-8")
        for right, wrong in self.changes.items():
            assert solution.count(right) == 1, (exercise, self.name)
            solution = solution.replace(right, wrong)
        return solution


MISTAKES = {
    "residual": (
        Mistake(
            "redraws from p",
            'A rejected token is replaced by "what the target says", a draw from p. But '
            "acceptance has emitted min(p, q) already.",
            {"return due / total if total > 0 else p": "return p"},
        ),
        Mistake(
            "is not a distribution",
            "The residual is (p - q)+ as it is. Right up to a factor, and the factor is "
            "everything.",
            {"return due / total if total > 0 else p": "return due"},
        ),
    ),
    "block_verification": (
        Mistake(
            "plain residual",
            "The token after the cut comes from (p - q)+, as in rejection sampling; the "
            "weight of what stands before it is forgotten.",
            {
                "scaled(due, p_rows[i])": "scaled((p_rows[i] - q_rows[i]).relu(), p_rows[i])"
            },
        ),
        Mistake(
            "token by token",
            "Each draft token is judged by itself. Lossless, like rejection sampling, "
            "which it is; but fewer draft tokens stay.",
            {
                "    return endings[::-1]\n": """\
    endings, left = [], 1.0
    for i, token in enumerate(tokens):
        stays = min(1.0, float(p_rows[i, token] / q_rows[i, token]))
        after = scaled((p_rows[i] - q_rows[i]).relu(), p_rows[i])
        endings.append((left * (1.0 - stays), after))
        left *= stays
    return [*endings, (left, p_rows[n])]
"""
            },
        ),
    ),
    "copy_on_write": (
        Mistake(
            "never copies",
            "New tokens are simply written after the last one. Right as long as nobody "
            "has forked.",
            {"must_copy = count > 0 and": "must_copy = False and"},
        ),
        Mistake(
            "half done",
            "First the copy, then one block after the other. If the pool runs dry in the "
            "middle, the branch is left in pieces.",
            {
                "pool.allocate(more + must_copy)": "pool.allocate(must_copy)",
                "    table.blocks += taken": "    for _ in range(more):\n"
                "        table.blocks += pool.allocate(1)",
            },
        ),
    ),
    "accept_rule": (
        Mistake(
            "first in time",
            "Whatever is aligned first in *time* is accepted. Fast, and the answer "
            "depends on who was faster.",
            {
                "    for number, aligned in enumerate(verdicts):\n": """\
    if True in verdicts:
        return verdicts.index(True)
    for number, aligned in enumerate(verdicts):
"""
            },
        ),
        Mistake(
            "gives up early",
            "No alternative is there, so the target is to go on alone, although the draft "
            "is only about to begin.",
            {"target_ready and not drafts_to_come": "target_ready"},
        ),
    ),
    "controller": (
        Mistake(
            "gives up",
            "Drafting stops where it does not pay. But who does not draft gets no "
            "verdicts, and never learns that things are better now.",
            {"return max(1, sync_best_k": "return (sync_best_k"},
        ),
        Mistake(
            "never forgets",
            "The rate is that of the whole run. After two hundred bad steps it takes two "
            "hundred good ones to believe in them.",
            {"MEMORY = 0.9": "MEMORY = 1.0"},
        ),
    ),
    "verifier": (
        Mistake(
            "numbers alone",
            "Compares the numbers and forgets whose they are.",
            {"return names, numbers, thing, adds": "return tuple(numbers)"},
        ),
        Mistake(
            "roles forgotten",
            "Compares names and numbers as sets: who gives and who gets is forgotten.",
            {"        names.reverse()\n": "        pass\n    names.sort()\n"},
        ),
    ),
    "fit": (
        Mistake(
            "tried on what it was fitted to",
            "Fits to all pairs and judges the same pairs. The numbers look better than "
            "they are on new pairs.",
            {"weights_of(scaled[~tried], signs[~tried])": "weights_of(scaled, signs)"},
        ),
        Mistake(
            "leaves out the pair, not its problem",
            "Every pair is judged by a fit to all others. But its neighbours of the same "
            "problem, with the same names and numbers, are among them.",
            {
                "for problem in set(problems):": "for problem in range(0, len(groups), 20):",
                "tried = groups == problem": "tried = np.arange(len(groups)) // 20 * 20 == problem",
            },
        ),
    ),
}
