import pytest
import torch

pytest.importorskip("triton")

from codinet.kernels.block.tile_sizes import choose
from tools.tune_tiles import candidates, main, weight_candidates


@pytest.mark.parametrize("channels", [16, 32, 64])
def test_candidates_are_valid_and_include_the_chosen_sizes(channels: int) -> None:
    size = 512 // channels
    for tried in (list(candidates(channels, size, size)), list(weight_candidates(channels, size, size))):
        assert choose(channels, size, size) in tried
        assert all(size % tiles.rows == 0 for tiles in tried)
        assert all(min(vars(tiles).values()) >= 1 for tiles in tried)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests the error without a GPU")
def test_the_command_requires_cuda(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "tuning requires a CUDA device" in capsys.readouterr().err
