"""`leanconv tune TARGET`, and the file of measured choices."""

from __future__ import annotations

import json as json_module
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click
import torch

from leanconv import dispatch
from leanconv._choices import Choice, Choices
from leanconv._key import subject
from leanconv.backends.call import memory_format
from leanconv.cli.console import progress_bar
from leanconv.cli.options import input_option, threads_option
from leanconv.cli.target import first_line, load_target
from leanconv.errors import LeanconvError
from leanconv.profiler.text import printable
from leanconv.tuning import tune_layers

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@click.command("tune")
@click.argument("target", required=False)
@input_option
@click.option(
    "--seconds",
    type=click.FloatRange(0.001),
    default=2.0,
    show_default=True,
    help="The longest time for one direction of one shape.",
)
@click.option("--dtype", type=click.Choice(list(_DTYPES)), default="float32", show_default=True)
@click.option(
    "--layout",
    type=click.Choice(["contiguous", "channels_last"]),
    default="contiguous",
    show_default=True,
)
@click.option("--explain", metavar="LAYER", help="Show only this layer, every candidate's time.")
@click.option("--show", is_flag=True, help="Show what is remembered.")
@click.option("--clear", is_flag=True, help="Forget what is remembered.")
@click.option("--export", "export_to", metavar="FILE", help="Write what is remembered as JSON.")
@click.option("--import", "import_from", metavar="FILE", help="Remember FILE's choices only.")
@click.option("--merge", "merge_from", metavar="FILE", help="Add FILE's choices.")
@click.option("--json", is_flag=True, help="Print JSON instead of text.")
@threads_option
def command(
    target: str | None,
    input: str | None,
    seconds: float,
    dtype: str,
    layout: str,
    explain: str | None,
    show: bool,
    clear: bool,
    export_to: str | None,
    import_from: str | None,
    merge_from: str | None,
    json: bool,
) -> None:
    """Measure ahead which implementation is fastest for each convolution of TARGET.

    The choices are remembered in a file, from which training takes them. Without a TARGET the
    options --show, --clear, --export, --import and --merge work on that file.
    `leanconv profile --help` says what a TARGET is.
    """
    if explain and not target:
        raise LeanconvError(f"`--explain` (={explain}) needs the TARGET that has this layer")
    asked = [clear, bool(import_from), bool(merge_from), bool(target), show, bool(export_to)]
    if not any(asked):
        raise LeanconvError(
            "name a TARGET, or one of --show, --clear, --export, --import and --merge"
        )
    if clear and import_from:
        raise LeanconvError("`--import` replaces what is remembered: leave `--clear` out")
    with _usable(dispatch.choices()) as choices:
        if clear:
            choices.clear()
        if import_from:
            _say(f"{_merged(choices, import_from, True)} choices imported", json)
        if merge_from:
            _say(f"{_merged(choices, merge_from, False)} choices merged", json)
        if target:
            found = _tuned(target, input, seconds, _DTYPES[dtype], layout)
            _print_layers(_only(found, explain) if explain else found, bool(explain), json)
        if show:
            _print_all(choices, json)
        if export_to:
            _export(choices, export_to)


@contextmanager
def _usable(choices: Choices) -> Iterator[Choices]:
    """Warnings about the file are one line each here; a file that cannot be used is an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield choices
    if "cannot be used" in choices.problem:
        raise LeanconvError(choices.problem)
    for each in caught:
        message = printable(str(each.message)).removeprefix("leanconv: ")
        print(f"leanconv: {message}", file=sys.stderr)


def _merged(choices: Choices, name: str, replace_all: bool) -> int:
    try:
        return choices.merge_from(Path(name), replace_all=replace_all)
    except OSError as error:
        raise LeanconvError(f"cannot read {name}: {error.strerror}") from None
    except ValueError as error:
        raise LeanconvError(str(error)) from None


def _export(choices: Choices, name: str) -> None:
    try:
        choices.export_to(Path(name))
    except OSError as error:
        raise LeanconvError(f"cannot write {name}: {error.strerror}") from None


def _tuned(
    target: str, input: str | None, seconds: float, dtype: torch.dtype, layout: str
) -> dict[str, list[Choice]]:
    loaded = load_target(target, input)
    model = loaded.model.to(dtype)
    data = torch.randn(loaded.input_shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    if layout == "channels_last":
        if data.dim() not in (4, 5):
            raise LeanconvError(
                f"`--layout` (=channels_last) is for images and volumes; the input of {target} "
                f"has {data.dim()} dimensions"
            )
        layout_of_all = memory_format(data.dim() - 2, True)
        data = data.contiguous(memory_format=layout_of_all)
        model = model.to(memory_format=layout_of_all)
    with progress_bar(f"Tuning {target}"), torch.random.fork_rng([]):
        try:
            found = tune_layers(model, data, seconds)
        except Exception as error:
            raise LeanconvError(f"{target} does not run: {first_line(error)}") from None
    if not found:
        raise LeanconvError(f"{target} runs no convolution that leanconv can choose for")
    return found


def _only(found: dict[str, list[Choice]], layer: str) -> dict[str, list[Choice]]:
    if layer not in found:
        raise LeanconvError(
            f"`--explain` (={layer}) must be one of the layers that ran: {', '.join(found)}"
        )
    return {layer: found[layer]}


def _say(sentence: str, json: bool) -> None:
    print(sentence, file=sys.stderr if json else sys.stdout)


def _print_layers(found: dict[str, list[Choice]], in_full: bool, json: bool) -> None:
    if json:
        data = {name: [asdict(each) for each in records] for name, records in found.items()}
        print(json_module.dumps(data, indent=1))
        return
    for name, records in found.items():
        print(printable(name))
        for record in records:
            _print_choice(record, in_full)


def _print_all(choices: Choices, json: bool) -> None:
    records = choices.all()
    if json:
        print(json_module.dumps([asdict(each) for each in records], indent=1))
        return
    print(f"{len(records)} choices in {choices.path}")
    for record in records:
        _print_choice(record, False)


def _print_choice(choice: Choice, in_full: bool) -> None:
    """One choice in lines of at most 80 columns."""
    words = printable(subject(choice.key)).split(", ")
    line = "  "
    for word in words:
        if len(line) + len(word) > 78:
            print(line.rstrip())
            line = "    "
        line += f"{word}, "
    print(line.rstrip(", "))
    if not choice.seconds:
        print(f"    {choice.sentence()}")
        return
    stock = choice.seconds.get("aten", choice.seconds[choice.backend])
    won = choice.seconds[choice.backend]
    print(f"    {choice.backend}: {won * 1e3:.3g} ms, {stock / won:.2f} times as fast as stock")
    if in_full:
        for name, seconds in sorted(choice.seconds.items(), key=lambda item: item[1]):
            mark = "*" if name == choice.backend else " "
            print(f"    {mark} {name:24} {seconds * 1e3:10.4g} ms {seconds / won:8.2f} x")
        if choice.backend == "aten" and min(choice.seconds.values()) < won:
            print("    stock stays: what is faster is so by less than the noise")
