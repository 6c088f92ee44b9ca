"""For those who write variants: `check` holds a part against the contract of its seam.

    from lr.testing import check

    def test_my_verifier() -> None:
        check(MyVerifier)                         # a class, or a function that makes one
        check(lambda: MyVerifier(threshold=0.3))

It finds out which seam the part is for, tries what the seam may ask of it, and raises
`ContractError` with what was expected and what came. `guard.py` checks types while a variant runs;
this checks what types cannot say: order independence, determinism, leaks, exact distributions.
"""

from lr.testing.kit import Checked, ContractError, check, check_answers, check_variant

__all__ = ["Checked", "ContractError", "check", "check_answers", "check_variant"]
