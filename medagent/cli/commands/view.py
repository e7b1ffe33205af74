"""The command that shows what a run did: `medagent view`."""

from pathlib import Path


def view(runs: list[str], port: int = 8010, export: str | None = None) -> None:
    """Show what a run did in a browser: curves, and every recorded rollout with the trainer's numbers of each token.

    The page follows a run that still trains. It listens on this machine alone.

    Args:
        runs: Folder of a run or an evaluation; with more, their answers to the same questions stand side by side.
        port: Port to listen on.
        export: File for the page with all of its data, which needs no server.
    """
    from medagent.evaluation.viewer.recorded import RecordedRun
    from medagent.evaluation.viewer.server import exported, make_viewer
    from medagent.files import write_whole

    recorded = [RecordedRun(Path(run)) for run in runs]
    if export:
        write_whole(Path(export), exported(recorded))
        print(f"Wrote {export}, {Path(export).stat().st_size / 1e6:.1f} MB. It opens in a browser without a server.")
        return
    import uvicorn

    from medagent.serving.middleware import refuse_busy

    refuse_busy("127.0.0.1", port)
    print(f"{' and '.join(runs)}: http://127.0.0.1:{port}  (Ctrl+C ends it)", flush=True)
    uvicorn.run(make_viewer(recorded), host="127.0.0.1", port=port, log_level="warning", access_log=False)
