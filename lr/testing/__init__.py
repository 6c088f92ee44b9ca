"""For those who write variants: `check` holds a part against the contract of its extension point.

    from lr.testing import check

    def test_my_verifier() -> None:
        check(MyVerifier)                         # a class, or a function that makes one
        check(lambda: MyVerifier(threshold=0.3))

It finds out which extension point the part is for, tries what the extension point may ask of it,
and raises `ContractError` with what was expected and what came. `guard.py` checks types while a
variant runs; this checks what types cannot say: order independence, determinism, leaks, exact
distributions.
"""

from lr.testing.kit import Checked, ContractError, check, check_answers, check_variant

__all__ = ["Checked", "ContractError", "check", "check_answers", "check_variant"]
