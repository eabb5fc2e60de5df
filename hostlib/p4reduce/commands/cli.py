# SPDX-License-Identifier: Apache-2.0
"""The command line `p4reduce`. A command is imported when it is called: a host needs only its role's extras."""

from importlib import import_module
from typing import Any, NamedTuple, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command


class Command(NamedTuple):
    """The module and name of a command's function, and the command's summary."""

    target: str
    summary: str

    @property
    def extra(self) -> str:
        """The extra that installs what the command's package needs."""
        package = self.target.partition(".")[0]
        return "cli" if package == "p4reduce" else package.removeprefix("p4reduce_")


COMMANDS = {
    "demo": Command(
        "p4reduce_bench.demo.cli:demo", "Train a small language model; the P4 program adds up its gradients."
    ),
    "switch": Command(
        "p4reduce_targets.cli:switch", "Run a switch on this machine: sim, native or BMv2; or drive its Tofino."
    ),
    "controller": Command(
        "p4reduce_controller.commands.cli:controller", "Run the controller, which serves jobs on P4Runtime switches."
    ),
    "token": Command("p4reduce_controller.commands.token_cli:token", "Make a token for a user of a controller."),
    "status": Command("p4reduce_controller.commands.cli:status", "Show a controller's jobs, slots and counters."),
    "jobs": Command("p4reduce_controller.commands.operating:jobs", "List, show and abort a controller's jobs."),
    "switches": Command(
        "p4reduce_controller.commands.operating:switches", "List, show, add, drain and remove a controller's switches."
    ),
    "top": Command(
        "p4reduce_controller.commands.operating:top",
        "Show a controller's jobs, packet rates and slots, refreshed until Ctrl-C.",
    ),
    "slots": Command(
        "p4reduce_controller.commands.operating:slots", "Show the state of a job's slots in the switches."
    ),
    "doctor": Command(
        "p4reduce_controller.doctor.cli:doctor", "Check the controller, the switches and this host, and say what to do."
    ),
    "shell": Command("p4reduce_controller.commands.shell:shell", "Start p4runtime-shell, connected to a switch."),
    "bench": Command("p4reduce_bench.cli:bench", "Measure allreduce and training, and compare with Gloo and MPI."),
    "simulate": Command(
        "p4reduce_simulator.cli:simulate", "Simulate allreduces of thousands of ranks on a network, in virtual time."
    ),
    "plan": Command(
        "p4reduce_simulator.plan.cli:plan", "Say how fast p4reduce would be on a network, and what to change."
    ),
    "topo": Command("p4reduce_topos.cli:topo", "Emulate networks of switches in Mininet, and run experiments on them."),
    "analyze": Command(
        "p4reduce_bench.analyze.cli:analyze", "Measure how sparse recorded gradients are, and how much time that saves."
    ),
    "trace": Command(
        "p4reduce.trace.cli:trace", "Record and view a job's rounds: which workers were late, which packets were lost."
    ),
    "exec": Command("p4reduce.commands.launching:app", "Join a job, and run a C program as one of its ranks."),
    "loss": Command("p4reduce_controller.commands.cli:loss", "Make a switch port lose packets, for experiments."),
}


class Commands(TyperGroup):
    """A group that lists commands by their summaries and imports a command only when it is named."""

    def resolve_command(self, context: Any, args: list[str]) -> Any:
        """Resolve a command like click's method, for a call or for shell completion, and import it."""
        name, known, rest = super().resolve_command(context, args)
        if name not in COMMANDS:
            return name, known, rest
        try:
            return name, load(name), rest
        except ModuleNotFoundError as error:
            if context.resilient_parsing and _is_anothers(error):
                return name, known, rest
            _needs(name, error)

    def invoke(self, context: Any) -> Any:
        """Run the command like click's method. A command imports the rest of what it needs when it runs."""
        try:
            return super().invoke(context)
        except ModuleNotFoundError as error:
            if context.invoked_subcommand not in COMMANDS:
                raise
            _needs(context.invoked_subcommand, error)


def _needs(name: str, error: ModuleNotFoundError) -> NoReturn:
    """Say which extra has the package that the command lacks, and exit."""
    if not _is_anothers(error):
        raise error
    extra = COMMANDS[name].extra
    typer.echo(f"p4reduce {name} needs the package {error.name!r}: pip install 'p4reduce[{extra}]'", err=True)
    raise typer.Exit(1) from None


def _is_anothers(error: ModuleNotFoundError) -> bool:
    return error.name is not None and error.name.partition(".")[0] != "p4reduce"


app = typer.Typer(
    name="p4reduce",
    cls=Commands,
    help="In-network aggregation of sparse tensors on programmable switches.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def version(show: bool) -> None:
    """Print the version and exit."""
    if show:
        import p4reduce

        typer.echo(f"p4reduce {p4reduce.__version__}")
        raise typer.Exit


@app.callback()
def root(
    _: bool = typer.Option(False, "--version", callback=version, is_eager=True, help="Show the version and exit."),
) -> None:
    """In-network aggregation of sparse tensors on programmable switches."""


def load(name: str) -> Any:
    """Import the command and return it as click's. Raises ModuleNotFoundError where its extra is not installed."""
    command = COMMANDS[name]
    module, function = command.target.split(":")
    called = getattr(import_module(module), function)
    if isinstance(called, typer.Typer):
        return get_command(called)
    alone = typer.Typer(add_completion=False)
    alone.command(help=command.summary)(called)
    return get_command(alone)


for _name, _command in COMMANDS.items():
    app.command(_name, help=_command.summary)(lambda: None)


def main() -> None:
    """Run the command line; needs typer."""
    app(prog_name="p4reduce")


if __name__ == "__main__":
    main()
