"""`leanconv doctor`: what is here, what is not, and why not."""

from __future__ import annotations

import importlib.metadata
import json as json_module

import click

from leanconv import _native
from leanconv.cli.console import output_console, progress_bar
from leanconv.measure import Circumstances, machine_limits, to_data
from leanconv.profiler.text import print_circumstances

PACKAGES = ("torchvision", "timm", "triton", "scikit-learn", "lightning", "tensorboard")


@click.command("doctor")
@click.option(
    "--limits/--no-limits", default=True, help="Show the machine's limits, measured if need be."
)
@click.option("--refresh", is_flag=True, help="Measure the limits again.")
@click.option("--json", is_flag=True, help="Print JSON instead of text.")
def command(limits: bool, refresh: bool, json: bool) -> None:
    """Say what leanconv finds on this machine, and why a part is not available."""
    here = Circumstances.now()
    found = None
    if limits:
        with progress_bar("Measuring the machine's limits") as on_progress:
            found = machine_limits(refresh=refresh, on_progress=on_progress)
    kernels = _kernels()
    packages = {name: _version(name) for name in PACKAGES}
    if json:
        data = {"circumstances": here, "limits": found, "kernels": kernels, "packages": packages}
        print(json_module.dumps(to_data(data), indent=1))
        return
    console = output_console()
    print_circumstances(here, console, found)
    console.print(f"\nCompiled kernels: {kernels}", highlight=False, markup=False)
    for name, version in packages.items():
        console.print(f"{name}: {version}", highlight=False, markup=False)


def _kernels() -> str:
    library = _native.library()
    if library is None:
        return f"not available: {_native.why_unavailable()}; every call is served by ATen"
    names = library.leanconv_isas().decode()
    return f"available for {', '.join(names.split())}; using {library.leanconv_isa().decode()}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed (optional)"
