"""What stands at the head of a player's page: a title, the setting, and the statistics, those of
`lr report` and of every run.

The numbers are computed by `lr/trace.py` and by nobody else; the page only shows them. Read
next: `page.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lr.lab.trace.file import Header, TraceFile
from lr.trace import Stats

MODES = {
    "ar": "Plain decoding",
    "sd": "Token-level speculation",
    "lr": "Lookahead Reasoning",
    "lr+sd": "Lookahead Reasoning with token-level speculation",
}


@dataclass(frozen=True)
class Figure:
    """One number: its name, the number as it is shown, and what it means."""

    label: str
    value: str
    means: str


def title_of(header: Header) -> str:
    """What was run, in words."""
    what = MODES.get(header.mode, header.mode)
    if header.driver == "simulated":
        return f"{what}, simulated"
    return f"{what}, scripted" if header.driver == "scripted" else what


def setting_of(header: Header) -> str:
    """Models and settings, in a line."""
    parts = []
    models = header.models
    if models.get("target"):
        parts.append(f"target {models['target']}")
    if models.get("draft") and header.mode != "ar":
        parts.append(f"draft {models['draft']}")
    if models.get("device"):
        parts.append(f"{models['device']} {models.get('dtype') or ''}".strip())
    if header.mode in ("lr", "lr+sd"):
        parts += [f"schedule {header.schedule}", f"depth {header.depth}", f"width {header.width}"]
        if header.verifier:
            parts.append(f"verifier {header.verifier}")
    if header.mode in ("sd", "lr+sd"):
        options = header.options
        if "num_speculative_tokens" in options:
            parts.append(
                f"{options['num_speculative_tokens']} guesses a round by {options.get('drafter')}"
            )
        if "acceptance" in options:
            parts.append(f"rule {options['acceptance']}")
    parts.append(f"driver {header.driver}")
    if header.variant:
        parts.append(f"variant: {header.variant}")
    return " · ".join(parts)


def headline_of(trace: TraceFile) -> list[Figure]:
    """The statistics worth a place at the head of the page; what was not counted is left out."""
    stats, header = trace.stats, trace.header
    figures = [Figure("steps", str(stats.steps), "steps of the answer")]
    if header.driver != "simulated":
        figures.append(Figure("tokens", str(stats.tokens), "tokens of the answer"))
    figures.append(
        Figure(
            "time",
            _time(stats, header),
            f"from the start to the last event that counts, in {header.unit}s",
        )
    )
    if header.unit == "second" and stats.tokens_per_second is not None:
        figures.append(
            Figure("tokens/s", f"{stats.tokens_per_second:.1f}", "tokens of the answer per second")
        )
    if stats.target_passes:
        figures.append(
            Figure("target passes", str(stats.target_passes), "forward passes of the target")
        )
        per_pass = f"{stats.tokens_per_target_pass:.2f}"
        figures.append(
            Figure("tokens/pass", per_pass, "tokens of the answer per forward pass of the target")
        )
    if stats.step_acceptance is not None:
        means = f"step acceptance: {stats.accepted} accepted draft steps of {stats.judged} that were judged and decided on"
        figures.append(Figure("α₁", f"{stats.step_acceptance:.2f}", means))
    if stats.token_acceptance is not None:
        rounds = stats.rounds
        means = f"token acceptance: {rounds.accepted} accepted tokens of {rounds.drafted} that were guessed"
        figures.append(Figure("accepted guesses", f"{stats.token_acceptance:.2f}", means))
    return figures


def _time(stats: Stats, header: Header) -> str:
    if header.unit == "second":
        return f"{stats.seconds:.2f} s"
    return f"{stats.seconds:.4g} {header.unit}s"
