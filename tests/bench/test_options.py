# SPDX-License-Identifier: Apache-2.0
"""Options that a benchmark cannot serve are refused before anything is measured."""

import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from p4reduce_bench.allreduce import links
from p4reduce_bench.allreduce.grid import bits_per_second
from p4reduce_bench.cli import bench
from p4reduce_bench.gradients import packages
from p4reduce_bench.training import trainings

WRONG = {
    "allreduce": [
        ("--target tofino", "accepted are native, sim, bmv2"),
        ("--workers 1", "accepted are 2 to 32"),
        ("--workers 6 --ranks-per-host 4 --link 1gbit", "accepted are 2 to 128, multiples of 4"),
        ("--ranks-per-host 4", "--ranks-per-host 4 needs --link"),
        ("--link 1gbit --local auto", "--local auto with --link: each worker is on a host of its own"),
        ("--local bogus", "--local bogus: accepted are auto, off"),
        ("--input dense,shared", "--input dense,shared with --local off"),
        ("--input coo --systems gloo", "--input coo needs p4reduce"),
        ("--link fast", "accepted are rates"),
        ("--systems p4reduce-c", "p4reduce-c reduces in the memory of one host: accepted with --local auto"),
        ("--systems gloo-sparse --calls 2", "--calls 2 with gloo-sparse: accepted are p4reduce, "),
        ("--systems sparcml --workers 3", "sparcml with 3 workers: accepted are powers of two"),
        ("--systems gloo,zen --dtype bfloat16", "zen of bfloat16: accepted are float32"),
        ("--systems switchml --dtype float16", "switchml of float16: accepted are float32, int32"),
        ("--systems gloo,gloo", "--systems gloo,gloo: accepted is each once"),
        ("--link 1gbit --target bmv2", "accepted are native and sim"),
        ("--aggregators 2 --target bmv2", "--aggregators 2 with --target bmv2"),
        ("--dtype int32 --wire int16", "--wire int16 with --dtype int32"),
    ],
    "train": [
        ("--model vgg", "accepted are recommender, ncf, lstm, bert, resnet, resnet18, vgg11, gpt2"),
        ("--systems nccl", ", ".join(trainings.HOOKS)),
        ("--target bmv2", "accepted are native, sim"),
        ("--ratio 0", "must be above 0 and up to 1"),
        ("--steps 2 --warm-up 2", "must be less than --steps 2"),
        ("--link fast", "accepted are rates"),
    ],
    "gradients": [
        ("--models alexnet", "accepted are resnet18, resnet50, vgg11"),
        ("--size huge", "accepted are tiny, base"),
        ("--target bmv2", "accepted are native, sim"),
        ("--sparsify randomk", "accepted are none, element, block"),
        ("--systems nccl", "accepted are p4reduce, gloo"),
        ("--record-at 0", "accepted are steps from 1 to 10"),
        ("--steps 4 --record-at 5", "accepted are steps from 1 to 4"),
        ("--ratio 0", "must be above 0 and up to 1"),
        ("--link fast", "accepted are rates"),
        ("--replay /nowhere", "is not a folder"),
        ("--replay {empty}", "holds no recordings"),
        ("--keep /proc", "must be an empty folder, or not exist yet"),
        ("--replay /proc --keep out", "replayed recordings are not copied"),
    ],
}


@pytest.fixture(autouse=True)
def _stays_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep commands from setting signal handlers, and from starting again in a network of their own."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(links, "enter", lambda link: link and bits_per_second(link))


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 1, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("command", "options", "message"), [(command, *one) for command, rows in WRONG.items() for one in rows]
)
def test_wrong_options_say_what_is_accepted(command: str, options: str, message: str, tmp_path: Path) -> None:
    assert message in refused(command, *options.format(empty=tmp_path).split())


@pytest.mark.parametrize("command", WRONG)
@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_file_that_cannot_be_written(command: str, option: str, tmp_path: Path) -> None:
    said = refused(command, option, str(tmp_path), "--timeout", "1")
    assert f"{option} {tmp_path}: nothing can be written there".replace(" ", "") in said.replace(" ", "")


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda _: None)
    said = "--models resnet18: the package torchvision is not installed: pip install 'p4reduce-bench[gradients]'"
    assert said in refused("gradients", "--models", "recommender,resnet18")
