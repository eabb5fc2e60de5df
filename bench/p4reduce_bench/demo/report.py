# SPDX-License-Identifier: Apache-2.0
"""The results of the demo, collected while it runs, as a table, as JSON and as a plot."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from p4reduce_bench import outputs

Event = dict[str, Any]


@dataclass
class Report:
    """The workers' events by rank, and the figures that follow from them."""

    target: str
    workers: int
    steps: int
    drop_rate: float
    events: dict[int, list[Event]] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    parameters: int = 0

    def add(self, rank: int, event: Event) -> None:
        """Add one event that a rank printed."""
        if "digest" in event:
            self.digests[rank] = event["digest"]
            self.parameters = event["parameters"]
        else:
            self.events.setdefault(rank, []).append(event)

    @property
    def losses(self) -> list[tuple[int, float]]:
        """Pairs of a step and the loss on the held-out text after it."""
        return [(event["step"], event["held_out_loss"]) for event in self.events[0] if "held_out_loss" in event]

    def _mean(self, name: str) -> float:
        values = [event[name] for events in self.events.values() for event in events if name in event]
        return sum(values) / len(values) if values else 0.0

    def _stats(self, name: str) -> int:
        return sum(int(events[-1]["stats"][name]) for events in self.events.values())

    @property
    def summary(self) -> dict[str, Any]:
        """All figures in one flat object; bytes are UDP payloads of all workers."""
        last = [events[-1] for events in self.events.values()]
        return {
            "version": 1,
            "target": self.target,
            "workers": self.workers,
            "steps": self.steps,
            "drop_rate": self.drop_rate,
            "parameters": self.parameters,
            "loss_first": self.losses[0][1],
            "loss_last": self.losses[-1][1],
            "element_density": self._mean("element_density"),
            "block_density": self._mean("block_density"),
            "tx_bytes": self._stats("bytes_sent"),
            "rx_bytes": self._stats("bytes_received"),
            "dense_bytes": 4 * self.parameters * self.steps * self.workers,
            "packets_sent": self._stats("packets_sent"),
            "rounds": self._stats("rounds"),
            "retransmissions": self._stats("retransmissions"),
            "backward_seconds_a_step": self._mean("seconds"),
            "inexact_values": sum(event["inexact"] for event in last),
            "worst_gloo_error": max(event["worst_gloo_error"] for event in last),
            "sums_sha256": self.digests[0],
            "ranks_agree": len(set(self.digests.values())) == 1,
        }

    @property
    def passed(self) -> bool:
        """Whether every sum is exact, equal at all ranks and within the stated error of Gloo's, and the loss fell."""
        summary = self.summary
        exact = summary["inexact_values"] == 0 and summary["ranks_agree"] and summary["worst_gloo_error"] <= 1
        return bool(exact) and summary["loss_last"] < summary["loss_first"]

    def table(self) -> Table:
        """Return the summary as a table."""
        summary = self.summary
        title = f"{self.workers} workers, gradients summed by the P4 program on {self.target}"
        table = outputs.table(title, ["what"], ["figure"])
        saved = 1 - summary["tx_bytes"] / max(summary["dense_bytes"], 1)
        good, bad = "[green]yes[/]", "[red]NO[/]"
        rows = [
            ("loss on held-out text", f"{summary['loss_first']:.3f} → {summary['loss_last']:.3f}"),
            ("steps", f"{self.steps}"),
            ("parameters", f"{self.parameters:,}"),
            ("gradient density, elements", f"{summary['element_density']:.1%}"),
            ("gradient density, blocks", f"{summary['block_density']:.1%}"),
            ("sent by workers", f"{summary['tx_bytes'] / 1e6:,.1f} MB"),
            ("same gradients, if sent dense", f"{summary['dense_bytes'] / 1e6:,.1f} MB ({saved:.0%} saved)"),
            ("received by workers", f"{summary['rx_bytes'] / 1e6:,.1f} MB"),
            ("rounds", f"{summary['rounds']:,}"),
            ("retransmissions", f"{summary['retransmissions']:,}"),
            ("backward pass with reduction", f"{summary['backward_seconds_a_step'] * 1e3:.0f} ms a step"),
            ("sums equal the reference, bit for bit", good if summary["inexact_values"] == 0 else bad),
            ("all ranks have the same bits", good if summary["ranks_agree"] else bad),
            ("sums within the stated error of Gloo's sums", good if summary["worst_gloo_error"] <= 1 else bad),
            ("largest error, in % of the stated error", f"{summary['worst_gloo_error']:.1%}"),
            ("digest of all sums", summary["sums_sha256"][:16]),
        ]
        for what, figure in rows:
            table.add_row(what, figure)
        return table

    def plot(self, path: Path) -> None:
        """Draw loss and bytes against steps."""
        events = self.events[0]
        steps = [event["step"] for event in events]
        trained = [(event["step"], event["loss"]) for event in events if "loss" in event]
        dense = [4 * self.parameters * min(step + 1, self.steps) / 1e6 for step in steps]
        with outputs.figure(path, 2, 1, (7, 6), sharex=True) as (figure, axes):
            above, below = axes[:, 0]
            above.plot(*zip(*trained, strict=True), color="0.75", label="rank 0, sampled words")
            above.plot(*zip(*self.losses, strict=True), "o-", label="held-out text, all words")
            above.set(ylabel="loss (nats a word)")
            above.set_ylim(bottom=0)
            below.plot(steps, dense, "--", label="dense")
            for name, label in (("bytes_sent", "sent"), ("bytes_received", "received")):
                below.plot(steps, [event["stats"][name] / 1e6 for event in events], label=label)
            below.set(ylabel="MB of rank 0, all steps so far", xlabel="step")
            above.legend()
            below.legend()
            figure.suptitle(f"p4reduce demo: {self.workers} workers on {self.target}")
