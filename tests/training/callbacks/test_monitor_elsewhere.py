"""The collapse monitor on other ranks, and when a run goes on."""

from __future__ import annotations

from types import SimpleNamespace

from medagent.training.callbacks.collapse_monitor import CollapseMonitor
from tests.training.pretend import PretendRanks
from tests.training.support import make_module


def test_a_resumed_run_keeps_the_rate_that_its_rollbacks_left() -> None:
    module, before, after = make_module(), CollapseMonitor(action="rollback"), CollapseMonitor(action="rollback")
    before._rollbacks = 2
    after.load_state_dict(before.state_dict())
    after.on_train_start(SimpleNamespace(), module)  # type: ignore[arg-type]
    assert module.policy_lr_scale == 0.25


def test_every_rank_judges_the_mean_of_all(monkeypatch) -> None:
    module, ranks = make_module(), PretendRanks(2)
    monkeypatch.setattr(module, "log_dict", lambda *row, **settings: None)

    def judged(rank: int) -> list[dict[str, float]]:
        monitor = CollapseMonitor()
        monitor._seen["reward/success"] = [float(rank)]
        monitor.on_train_epoch_end(ranks.trainer(rank, module, callbacks=[monitor], loggers=[]), module)
        return monitor._detector.rows

    assert ranks.run(judged) == [[{"reward/success": 0.5}]] * 2
