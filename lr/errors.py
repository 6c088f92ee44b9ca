"""Errors that a user can meet, each with the value, what was expected and what to do.

The command line turns every `LRError` into one message and exit code 2, without a traceback.
Anything else that escapes is a bug of ours and keeps its traceback. Read next: `types.py`.
"""


class LRError(Exception):
    """Base of every error that is the user's to mend. Its text is the whole message."""


class SettingError(LRError, ValueError):
    """A setting is impossible (a negative depth, top_p of 7, draft and target that do not fit
    together).
    """


class CheckpointError(LRError):
    """A checkpoint cannot be loaded: missing or broken file, foreign architecture, keys that do not
    account.
    """


class ContextError(LRError, ValueError):
    """A prompt, or a prompt with what should follow it, is longer than the context of the model."""


class OutOfBlocks(LRError):
    """The block pool is exhausted. Nothing was changed by the call that raised it.

    `needed` and `free` count blocks; `total` is the size of the pool.
    """

    def __init__(self, needed: int, free: int, total: int) -> None:
        self.needed, self.free, self.total = needed, free, total
        super().__init__(
            f"the KV cache is full: {needed} more blocks are needed, {free} of {total} are free. "
            "Give more blocks (num_blocks; on the command line --num_blocks), or "
            "lower the depth, the width or the number of tokens."
        )

    def __reduce__(self) -> tuple[type, tuple[int, int, int]]:
        return type(self), (self.needed, self.free, self.total)


class NumericalError(LRError, ArithmeticError):
    """A model computed something that is not a number."""


class ProtocolError(LRError, RuntimeError):
    """An object was driven in a way that cannot happen in a correct program (a closed branch fed,
    an unknown event).
    """
