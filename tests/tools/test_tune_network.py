import pytest
import torch

from codinet.create import create_model
from codinet.errors import UserError
from codinet.kernels.network.network_tuning import Cut, tunings_for, uniform
from tools.tune_network import Timing, candidates, main, print_table, tune


@pytest.mark.parametrize("batch", [1, 16, 1024])
def test_candidates_fit_the_device(batch: int) -> None:
    tried = candidates(batch, 132)
    assert 3 <= len(set(tried)) == len(tried)
    assert all(tuning.split == 1 or tuning.split * batch <= 132 for tuning in tried)
    assert tried[0] == tunings_for(batch, 132)[0]


def test_the_table_lists_the_fastest_tuning_first(capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = uniform(Cut("taps", 64, 1), 3), uniform(Cut("pairs", 64, 1), 3)
    rows = [
        Timing(1, slow, problem="OutOfResources: too large"),
        Timing(1, slow, 3.0, 3.5, 2.0, 0.1),
        Timing(1, fast, 2.0, 2.5, 1.0, 0.1),
    ]
    print_table(rows)
    lines = capsys.readouterr().out.splitlines()
    assert [str(fast) in lines[1], str(slow) in lines[2], "OutOfResources" in lines[3]] == [True] * 3
    assert "gain 2.000" in lines[1]


def test_tuning_requires_cuda() -> None:
    with pytest.raises(UserError, match="CUDA"):
        tune(create_model("resnet20"), [1], torch.float32)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests the error without a GPU")
def test_the_command_requires_cuda(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "tuning requires a CUDA device" in capsys.readouterr().err
