"""Errors that a user can meet, each with the value, what was expected and what to do.

The command line turns every `LRError` into one message and exit code 2, without a traceback.
Anything else that escapes is a bug of ours and keeps its traceback. Read next: `types.py`.
"""


class LRError(Exception):
    """Base of every error that is the user's to mend. Its text is the whole message."""


class SettingError(LRError, ValueError):
    """A setting is impossible: a negative depth, top_p of 7, a draft of another vocabulary."""


class CheckpointError(LRError):
    """A checkpoint cannot be loaded: broken files, tensors missing, a foreign architecture."""


class ContextError(LRError, ValueError):
    """A prompt, or a prompt with what should follow it, is longer than the context of the model."""


class OutOfBlocks(LRError):
    """The block pool is exhausted; the call has changed nothing. All three numbers count blocks."""

    def __init__(self, needed: int, free: int, total: int) -> None:
        self.needed, self.free, self.total = needed, free, total
        super().__init__(
            f"the KV cache is full: {needed} more blocks are needed, {free} of {total} are free. "
            "Give more blocks (num_blocks; on the command line --num_blocks), or "
            "lower the depth, the width or the number of tokens."
        )

    def __reduce__(self) -> tuple[type, tuple[int, int, int]]:
        return type(self), (self.needed, self.free, self.total)


class RankLost(LRError):
    """A collective failed: another rank is gone, or did not come in time."""


class NumericalError(LRError, ArithmeticError):
    """A model computed something that is not a number."""


class ProtocolError(LRError, RuntimeError):
    """An object was used as no correct program does: a closed branch fed, an unknown event."""
