"""`recipe open`: TensorBoard of the cluster, in the browser of this machine."""

import click

from runner.commands.options import port_option, recipe_path, say, set_option
from runner.parts.openshift.commands import cluster_options as shared
from runner.tools.process import HOST


@click.command("open")
@recipe_path
@set_option
@port_option(6006, "TensorBoard")
@click.option("--no-browser", is_flag=True, help="Only say the address.")
def open_tensorboard(path: str, sets: tuple[str, ...], port: int, no_browser: bool) -> None:
    """Show the curves of all runs on a recipe's claim, until ^C."""
    from runner.parts.openshift import port_forward
    from runner.parts.openshift.client import connect

    plan = shared.open_plan(path, sets)
    cluster = connect()
    space = plan.site["namespace"]
    claim = plan.claim_of(plan.place.run_dir)
    pod = port_forward.tensorboard(cluster, space, claim["name"] if claim else None)

    def ready(local: int) -> None:
        address = f"http://{HOST}:{local}/"
        say(f"TensorBoard: {address}  (^C ends it)")
        if not no_browser:
            import webbrowser

            webbrowser.open(address)

    port_forward.forward(cluster, space, pod, port_forward.TENSORBOARD_PORT, port, ready)


COMMAND = "open_tensorboard"
