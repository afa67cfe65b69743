"""Arrays to tensors on the model's device: shared memory on CPU, pinned and on a stream of its own on CUDA."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .errors import DeviceError


def choose_device(device: str | torch.device) -> torch.device:
    """The device itself; `auto` is CUDA where there is one, else CPU. Raises: DeviceError for one that is not there."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(1, device=found).numpy(force=True)  # `meta` has tensors, but no values in them
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise DeviceError(
            f"expected a device that torch has here (cpu, cuda:0, …), got {str(device)!r}: {reason}"
        ) from None
    return found


class DeviceTransfer:
    """Copies to one device without stopping the step that runs there.

    Thread safety: `tensor` and `finish` belong to the thread that transfers, `ready` to the one that trains.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """The array on the device; on CPU it shares the array's memory. uint64 arrives as the int64 bit pattern."""
        if array.dtype == np.uint64:
            array = array.view(np.int64)
        tensor = torch.from_numpy(array) if array.flags.writeable else torch.from_numpy(array.copy())
        if self._stream is None:
            return tensor if self.device.type == "cpu" else tensor.to(self.device)
        with torch.cuda.stream(self._stream):
            return tensor.pin_memory().to(self.device, non_blocking=True)

    def finish(self) -> Any:
        """An event after all copies so far; None on CPU."""
        if self._stream is None:
            return None
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def ready(self, event: Any, tensors: Iterable[torch.Tensor]) -> None:
        """Make the current stream wait for the event, and keep the tensors' memory until that stream is past them."""
        if event is None:
            return
        current = torch.cuda.current_stream(self.device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)

    def host(self, tensor: torch.Tensor) -> npt.NDArray[Any]:
        """The tensor as an array in host memory; on CPU it shares the tensor's memory."""
        with nullcontext() if self.device.type == "cpu" else torch.no_grad():
            array: npt.NDArray[Any] = tensor.detach().cpu().contiguous().numpy()
            return array
