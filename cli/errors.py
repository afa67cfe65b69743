"""What a command says when it cannot go on: one clear error and an exit code, no traceback."""

from __future__ import annotations

import re

EXIT_FAILURE = 1
"""The job was sound and something broke on the way: disk full, a lost server, a defect."""
EXIT_BAD_INPUT = 2
"""The user's words or files are not as they must be; nothing was done."""

_PATH_ERRORS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, FileExistsError)
_INPUT_ERRORS = (ValueError, TypeError, LookupError)


class UsageError(ValueError):
    """The command line asks for something that does not go together."""


def exit_code(error: BaseException) -> int:
    """`EXIT_BAD_INPUT` for errors of this package's classes that say so by their base, else `EXIT_FAILURE`.

    A ValueError or LookupError that another library raised is a defect of ours (we did not check), not bad input."""
    is_input = isinstance(error, _PATH_ERRORS) or (is_known(error) and isinstance(error, _INPUT_ERRORS))
    return EXIT_BAD_INPUT if is_input else EXIT_FAILURE


def is_known(error: BaseException) -> bool:
    """Whether the error's message was written for the user: an Embershard error or one of the operating system.

    Built-in errors that this package raises itself say `expected …, got …`; no library's do."""
    if type(error).__module__.split(".")[0] == "embershard" or isinstance(error, OSError):
        return True
    return isinstance(error, ValueError | LookupError) and _message(error).startswith("expected ")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the system, or a device, has no memory left for what was asked."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # torch raises plain RuntimeErrors on a CPU.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def describe(error: BaseException) -> str:
    """The error in words and where its notes say it arose, without the quotes that KeyError adds; a defect is named
    as one."""
    if is_out_of_memory(error):
        asked = re.search(r"allocate ([\d,.]+ ?[kKMGTPE]?i?[bB]\w*)", str(error))
        size = f" for {asked[1]} more" if asked else ""
        return (
            f"expected memory{size}, got none ({_raised_at(error)}): a smaller model (model.hidden, model.dim) or "
            "batch (train.batch_size) needs less, and shards on other machines (store.address) hold larger tables"
        )
    if is_known(error):
        return "; ".join([_message(error), *getattr(error, "__notes__", ())])
    where = _raised_at(error)
    return f"unexpected {type(error).__name__}: {_message(error)} ({where}; --traceback shows all)"


def _message(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        places = [str(name) for name in (error.filename, error.filename2) if name is not None]
        return f"{error.strerror}: {' -> '.join(places)}" if places else error.strerror
    if isinstance(error, KeyError) and len(error.args) == 1:
        return str(error.args[0])
    return str(error) or type(error).__name__


def _raised_at(error: BaseException) -> str:
    trace = error.__traceback__
    if trace is None:
        return "nowhere known"
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
