"""``streamq demo``: watch real jobs survive a killed worker."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamq.cli.output import AsJson, fail, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from streamq.demo.ledger import Ledger


def demo(
    url: Annotated[
        str | None,
        typer.Option("--url", help="Server to run on.", show_default="an embedded Valkey, nothing to install"),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the demo's keys on the server, to look at.")] = False,
    as_json: AsJson = False,
) -> None:
    """Deliver 329 real webhooks while workers are killed, and balance the ledger.

    Two worker processes deliver to a local HTTP receiver that answers slowly, with errors, or not at all; what fails is
    tried again after 0.5, 1 and 2 seconds. One worker is killed with SIGKILL in the middle. Two payloads are poison: one
    always raises, one kills its process. One delivery is put off for an hour by the receiver, and run by hand. At the end
    the ledger is read back from the server. Exit status 0 only if it balances.
    """
    from rich.console import Console

    from streamq.demo import show

    console = Console(stderr=as_json)
    server = url or embedded_url()
    found = show.run(server, f"demo-{secrets.token_hex(4)}", console, keep=keep)
    if as_json:
        print_json(found)
    else:
        console.print(table(found))
    if not found.balanced:
        fail("the ledger does not balance: " + "; ".join(found.wrong))
        raise typer.Exit(1)


def table(found: Ledger) -> Table:
    """The ledger as it is shown."""
    from rich.table import Table

    table = Table(title="Ledger, read back from the server", show_header=False)
    table.add_row("jobs added", str(found.jobs))
    table.add_row("delivered", f"{found.delivered}, receipts {found.receipts} (one each)")
    table.add_row("by attempt", counts(found.by_attempt))
    table.add_row("run by hand", ", ".join(f"{job_id}: once, by attempt {n}" for job_id, n in found.by_hand.items()))
    table.add_row("attempts that failed", f"{found.failed}, {found.retried} of them followed by another")
    table.add_row("dead letters", counts(found.dead))
    table.add_row("left", f"ready {found.ready}, pending {found.pending}, scheduled {found.scheduled}")
    table.add_row("lost", str(found.lost))
    table.add_row("workers that died", str(found.kills))
    table.add_row("seconds", str(found.seconds))
    return table


def counts(found: Mapping[Any, int]) -> str:
    """Figures by name, in a line."""
    return ", ".join(f"{name}: {number}" for name, number in found.items()) or "none"


def embedded_url() -> str:
    """URL of an embedded server that other processes can use too, as long as this one lives."""
    from streamq.embedded import start_embedded

    return f"unix://{start_embedded(None)}"
