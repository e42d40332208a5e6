"""The one kind of error that the command line shows as a sentence instead of a traceback."""


class LeanconvError(ValueError):
    """A mistake in what the caller asked for, said in one sentence that names what would do."""
