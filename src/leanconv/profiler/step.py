"""One training step, cut into its phases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Batch = tuple[Any, Any]
Loss = Callable[[Any, Any], Tensor]
PhaseMark = Callable[[str], AbstractContextManager[Any]]


def default_loss(output: Any, target: Any) -> Tensor:
    """Cross-entropy for class scores `(N, C)` with integer targets, else the mean square.

    Raises:
        TypeError: if the output holds no floating-point tensor.
    """
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (list, tuple)):
        losses = [default_loss(item, None) for item in output if _is_float(item)]
        if losses:
            return torch.stack(losses).sum()
    if not _is_float(output):
        raise TypeError(f"the model returns {type(output).__name__}; pass a `loss` that takes it")
    if target is not None and output.dim() == 2:
        loss: Tensor = F.cross_entropy(output, target)
    else:
        loss = output.float().square().mean()
    return loss


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, (list, tuple)):
        return type(value)(_to(item, device) for item in value)
    return value


def _unmarked(phase: str) -> AbstractContextManager[Any]:
    return nullcontext()


class TrainingStep:
    """A model, its loss and optimizer, and an endless supply of batches: `step()` trains once.

    Args:
        model: the module to train; called with a batch's input, or its items if that is a tuple.
        data: batches `(input, target)`, iterated again and again; `target` may be None.
        loss: a scalar from `(output, target)`; by default cross-entropy for `(N, C)` scores with a
            target, else the mean square.
        optimizer: by default SGD at a rate of 0.01 with momentum over all trainable parameters.

    Raises:
        ValueError: if `data` yields nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Iterable[Batch],
        *,
        loss: Loss | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.model = model
        self.loss = loss or default_loss
        trainable = [p for p in model.parameters() if p.requires_grad]
        if optimizer is None and trainable:
            optimizer = torch.optim.SGD(trainable, lr=0.01, momentum=0.9)
        self.optimizer = optimizer
        self.data = data
        self._batches = endless(data)
        tensor = next(iter([*model.parameters(), *model.buffers()]), None)
        self.device = tensor.device if tensor is not None else torch.device("cpu")
        self._loss = torch.tensor(float("nan"))
        self.input_shape: tuple[int, ...] = ()

    def __call__(self, mark: PhaseMark = _unmarked) -> None:
        """Train on the next batch; `mark(phase)` is entered around each phase."""
        with mark("data"):
            input, target = next(self._batches)
        with mark("host-to-device"):
            input, target = _to(input, self.device), _to(target, self.device)
        self.input_shape = _shape(input)
        with mark("forward"):
            output = self.model(*input) if isinstance(input, (list, tuple)) else self.model(input)
            loss = self.loss(output, target)
            self._loss = loss.detach()
        # The user's own loop holds the loss but not the output past this point.
        del output, input, target
        with mark("backward"):
            loss.backward()
        with mark("optimizer"):
            if self.optimizer is not None:
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)

    def loss_value(self) -> float:
        """The last step's loss. On a GPU this waits for the device."""
        return float(self._loss)


def _shape(input: Any) -> tuple[int, ...]:
    first = input[0] if isinstance(input, (list, tuple)) and len(input) else input
    return tuple(first.shape) if isinstance(first, Tensor) else ()


def endless(data: Iterable[Any]) -> Iterator[Any]:
    """Iterate again and again; an iterable that yields nothing is refused."""
    while True:
        empty = True
        for batch in data:
            empty = False
            yield batch
        if empty:
            raise ValueError("`data` yields no batch")
