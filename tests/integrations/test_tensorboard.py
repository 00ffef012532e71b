"""TensorBoard's writer takes the flat metrics of an optimizer, one curve each."""

from __future__ import annotations

from pathlib import Path

import mcf.optim
from tests.integrations.packages import package
from tests.integrations.training import Model, tokens

package("tensorboard")


def test_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    model = Model()
    optimizer = mcf.optim.AdamW(model.parameters(), 1e-2, precision="plus", track_metrics=True)
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(3):
            model(tokens(4)).backward()
            optimizer.step()
            for name, value in optimizer.metrics(flat=True).items():
                writer.add_scalar(f"optimizer/{name}", value, step)
            optimizer.zero_grad()
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [event.step for event in read.Scalars("optimizer/edq_ratio")] == [0, 1, 2]
    assert "optimizer/groups/0/lost_param" in read.Tags()["scalars"]
