"""The errors that a user can meet. Each states the value, what was expected and what to
do.

The command line turns every `LRError` into one message and exit code 2, without a
traceback. Any other exception that escapes is a bug and keeps its traceback. Read next:
`types.py`.
"""


class LRError(Exception):
    """Base of all errors that the user can fix. Its text is the whole message."""


class SettingError(LRError, ValueError):
    """A setting is impossible: a negative depth, top_p = 7, a draft with another
    vocabulary."""


class CheckpointError(LRError):
    """A checkpoint cannot be loaded: broken files, missing tensors, an unknown
    architecture."""


class ContextError(LRError, ValueError):
    """A prompt, or a prompt plus the text to be written, is longer than the model's
    context."""


class OutOfBlocks(LRError):
    """The block pool is exhausted; the call changed nothing. All three numbers count
    blocks."""

    def __init__(self, needed: int, free: int, total: int) -> None:
        self.needed, self.free, self.total = needed, free, total
        super().__init__(
            f"the KV cache is full: {needed} more blocks are needed, {free} of {total} are free. "
            "Give more blocks (num_blocks; on the command line --num_blocks), on a GPU more "
            "free memory, or lower the depth, the width or the number of tokens."
        )

    def __reduce__(self) -> tuple[type, tuple[int, int, int]]:
        return type(self), (self.needed, self.free, self.total)


class NumericalError(LRError, ArithmeticError):
    """A model computed a value that is not a finite number."""
