"""For authors of variants: `check` tests a part against the contract of its extension
point.

    from lr.variants.kit import check

    def test_my_verifier() -> None:
        check(MyVerifier)                         # a class, or a function that makes an object
        check(lambda: MyVerifier(threshold=0.3))

It finds the extension point of the part, calls the part as the extension point may, and
raises `ContractError` with the expected and the actual result. `guard.py` checks types
while a variant runs; `check` tests what types cannot express: order independence,
determinism, leaks, exact distributions."""

from lr.variants.kit.check import (
    Checked,
    ContractError,
    check,
    check_answers,
    check_variant,
)

__all__ = ["Checked", "ContractError", "check", "check_answers", "check_variant"]
