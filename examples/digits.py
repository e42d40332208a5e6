"""Train the forum network dense and separable on handwritten digits; see where a step's time goes.

Run it: python examples/digits.py [--out FOLDER]. Prints tables, writes report.html and report.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import leanconv
from leanconv.cli.console import output_console, progress_bar
from leanconv.measure import Circumstances, machine_limits
from leanconv.profiler import Report, TrainingStep
from leanconv.profiler.html import write_html
from leanconv.profiler.text import print_report
from leanconv.train import digits, train_steps

BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("."), help="where the report goes")
    parser.add_argument("--steps", type=int, default=60, help="training steps a network")
    parser.add_argument("--seconds", type=float, default=8.0, help="time a measurement")
    options = parser.parse_args()

    torch.manual_seed(0)
    data = digits()
    networks = {
        "dense_cifar": leanconv.models.dense_cifar(),
        "separable_cifar": leanconv.models.separable_cifar(),
    }
    with progress_bar("Measuring the machine's limits") as on_progress:
        limits = machine_limits(on_progress=on_progress)
    trainings, profiles = [], []
    for name, network in networks.items():
        with progress_bar(f"Training {name}") as on_progress:
            trainings.append(
                train_steps(
                    network,
                    data,
                    steps=options.steps,
                    batch_size=BATCH,
                    name=name,
                    on_progress=on_progress,
                )
            )
        with progress_bar(f"Profiling {name}") as on_progress:
            profiles.append(
                leanconv.profile(
                    network,
                    data.loader(BATCH),
                    name=name,
                    seconds=options.seconds,
                    on_progress=on_progress,
                )
            )
    dense, separable = (TrainingStep(net, data.loader(BATCH)) for net in networks.values())
    with progress_bar("Comparing them") as on_progress:
        comparison = leanconv.compare(
            dense,
            separable,
            labels=("dense_cifar", "separable_cifar"),
            seconds=options.seconds,
            self_check=True,
            on_progress=on_progress,
        )
    report = Report(
        "The forum network on handwritten digits, dense and separable",
        Circumstances.now(),
        tuple(trainings),
        tuple(profiles),
        (comparison,),
        limits,
    )
    print_report(report, output_console())
    options.out.mkdir(parents=True, exist_ok=True)
    write_html(report, options.out / "report.html")
    report.write_json(options.out / "report.json")
    print(f"\nWritten: {options.out / 'report.html'} and {options.out / 'report.json'}")


if __name__ == "__main__":
    main()
