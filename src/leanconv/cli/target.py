"""TARGET: from the word on the command line to a model and its input.

A TARGET is a name of leanconv's own models, `torchvision:NAME`, `timm:NAME`,
`package.module:function` or `file.py:function`; a function is called without arguments and
returns a torch.nn.Module.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanconv import models
from leanconv.errors import LeanconvError
from leanconv.profiler.step import TrainingStep
from leanconv.profiler.units import format_shape

DEFAULT_IMAGE = (8, 3, 224, 224)


@dataclass(frozen=True)
class Target:
    """A model made from a TARGET, and the shape of its input, batch first."""

    name: str
    model: nn.Module
    input_shape: tuple[int, ...]

    def step(self) -> TrainingStep:
        """A training step on one batch of random data, tried once so that it is known to work.

        Raises:
            LeanconvError: if the model cannot be trained on that input.
        """
        data = torch.randn(self.input_shape, generator=torch.Generator().manual_seed(0))
        try:
            batch = data, _labels(_evaluate(self.model, data))
            step = TrainingStep(self.model, [batch])
            with torch.random.fork_rng([]):
                step()
        except Exception as error:
            raise LeanconvError(
                f"{self.name} does not train on an input of shape "
                f"{format_shape(self.input_shape)}: {first_line(error)}"
            ) from None
        return step


def _evaluate(model: nn.Module, data: Tensor) -> Any:
    """The output in evaluation mode, which moves no running statistics; modes are put back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            return model(data)
    finally:
        for module, training in modes:
            module.training = training


def _labels(output: Any) -> Tensor | None:
    """Random classes where the output is a table of scores."""
    if isinstance(output, Tensor) and output.dim() == 2 and output.shape[1] > 1:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(output.shape[1], (output.shape[0],), generator=generator)
    return None


def parse_shape(text: str) -> tuple[int, ...]:
    """`32x3x32x32` as numbers.

    Raises:
        LeanconvError: if it is none.
    """
    parts = text.lower().replace(",", "x").split("x")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise LeanconvError(
            f"`--input` (={text}) must be positive sizes joined by x, batch first, as in 32x3x32x32"
        )
    return tuple(map(int, parts))


def load_target(text: str, input_shape: str | None = None) -> Target:
    """Make the model that a TARGET names, with the same initial weights each time.

    Raises:
        LeanconvError: if there is no such thing, or it raises, or it makes no module.
    """
    shape = parse_shape(input_shape) if input_shape else None
    kind, colon, name = text.rpartition(":")
    if not colon:
        make, default = _own_model(text)
    elif kind == "torchvision":
        make, default = _torchvision_model(name), DEFAULT_IMAGE
    elif kind == "timm":
        make, default = _timm_model(name), DEFAULT_IMAGE
    else:
        make, default = _function(kind, name), None
    if shape is None and default is None:
        raise LeanconvError(f"{text} needs `--input`, its input's shape, as in 32x3x32x32")
    try:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            model = make()
    except Exception as error:
        raise LeanconvError(f"{text} raises when called: {first_line(error)}") from None
    if not isinstance(model, nn.Module):
        raise LeanconvError(
            f"{text} returns {type(model).__name__}; it must return a torch.nn.Module"
        )
    return Target(text, model, shape or default or ())


def first_line(error: BaseException) -> str:
    """An error's kind and the first line of its message."""
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first}"


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _own_model(name: str) -> tuple[Callable[[], nn.Module], tuple[int, ...]]:
    if name not in models.names():
        hint = _near(name, models.names()) or f"; leanconv's own are {', '.join(models.names())}"
        raise LeanconvError(
            f"unknown target {name!r}{hint} (others: torchvision:NAME, timm:NAME, "
            "package.module:function, file.py:function)"
        )
    entry = models.entry(name)
    return entry.function, entry.input_shape


def _optional_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LeanconvError(
            f"{name} cannot be imported ({first_line(error)}); "
            "`pip install 'leanconv[models]'` brings it"
        ) from None


def _torchvision_model(name: str) -> Callable[[], nn.Module]:
    library = _optional_module("torchvision.models")
    known = library.list_models()
    if name not in known:
        raise LeanconvError(f"torchvision has no model {name!r}{_near(name, known)}")
    return lambda: library.get_model(name, weights=None)


def _timm_model(name: str) -> Callable[[], nn.Module]:
    library = _optional_module("timm")
    if not library.is_model(name):
        raise LeanconvError(f"timm has no model {name!r}{_near(name, library.list_models())}")
    return lambda: library.create_model(name, pretrained=False)


def _function(place: str, name: str) -> Callable[[], nn.Module]:
    try:
        module = _module_of_file(place) if place.endswith(".py") else _module_of_package(place)
    except LeanconvError:
        raise
    except Exception as error:
        raise LeanconvError(f"{place} cannot be imported: {first_line(error)}") from None
    function = getattr(module, name, None)
    if not callable(function):
        what = "has no function" if function is None else "holds no function under"
        public = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise LeanconvError(f"{place} {what} {name!r}{_near(name, public)}")
    return function  # type: ignore[no-any-return]


def _module_of_file(place: str) -> Any:
    path = Path(place)
    if not path.is_file():
        raise LeanconvError(f"there is no file {place}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise LeanconvError(f"{place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.fspath(path.resolve().parent))
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _module_of_package(place: str) -> Any:
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    return importlib.import_module(place)
