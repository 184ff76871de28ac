import pytest
import torch

from codinet.errors import UserError
from codinet.kernels.stage_tuning import Cut, tuning_for, uniform
from codinet.model import create_model
from codinet.tuning.stages import Timed, candidates, print_table, tune


@pytest.mark.parametrize("batch", [1, 16, 1024])
def test_what_is_tried_fits_the_device(batch: int) -> None:
    tried = candidates(batch, 132)
    assert 3 <= len(set(tried)) == len(tried)
    assert all(tuning.split == 1 or tuning.split * batch <= 132 for tuning in tried)
    assert tried[0] == tuning_for((16, 32, 64), batch, 132)


def test_tunings_are_listed_the_fastest_first(capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = uniform(Cut("taps", 64, 1), 3), uniform(Cut("pairs", 64, 1), 3)
    rows = [
        Timed(1, slow, problem="OutOfResources: too large"),
        Timed(1, slow, 3.0, 3.5, 2.0, 0.1),
        Timed(1, fast, 2.0, 2.5, 1.0, 0.1),
    ]
    print_table(rows)
    lines = capsys.readouterr().out.splitlines()
    assert [str(fast) in lines[1], str(slow) in lines[2], "OutOfResources" in lines[3]] == [True] * 3
    assert "gain 2.000" in lines[1]


def test_tunings_are_found_on_a_gpu_only() -> None:
    with pytest.raises(UserError, match="CUDA"):
        tune(create_model("resnet20"), [1], torch.float32)
