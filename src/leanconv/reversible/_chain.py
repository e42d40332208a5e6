"""The steps of a module: a stepwise one says its own, any other invertible one is a single step."""

from __future__ import annotations

from torch import Tensor, nn

from leanconv.reversible._engine import Step
from leanconv.reversible._replay import Function
from leanconv.reversible._steps import WholeStep


class Stepwise(nn.Module):
    """A module that says what it does in the engine's steps."""

    def steps(self, label: str, *, inverse: bool = False) -> list[Step]:
        """The steps of the forward or of the inverse, under a name for messages."""
        raise NotImplementedError

    def prepare(
        self, inputs: tuple[Tensor, ...], *, inverse: bool = False
    ) -> tuple[list[Step], tuple[Tensor, ...]]:
        """The steps and the inputs that the engine runs for these inputs."""
        return self.steps(type(self).__name__, inverse=inverse), inputs


def steps_of(module: nn.Module, label: str, *, inverse: bool = False) -> list[Step]:
    """The engine's steps for a module's forward or inverse.

    Raises:
        ValueError: if the module has no inverse.
    """
    if isinstance(module, Stepwise) and not _has_hooks(module):
        return module.steps(label, inverse=inverse)
    check_invertible(module, label)
    undo: Function = module.inverse  # type: ignore[assignment]  # torch types it as a tensor
    return [WholeStep(undo, module, label) if inverse else WholeStep(module, undo, label)]


def check_invertible(module: object, label: str) -> None:
    """Raise ValueError for a module without an inverse."""
    if not (isinstance(module, nn.Module) and callable(getattr(module, "inverse", None))):
        raise ValueError(
            f"{label} (a {type(module).__name__}) has no `inverse`; a block must be a coupling or "
            f"a module with `forward` and `inverse`"
        )


def _has_hooks(module: nn.Module) -> bool:
    """Whether somebody expects the module itself to be called."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
