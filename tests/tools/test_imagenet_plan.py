import pytest

from codinet.errors import UserError
from tools.imagenet_plan import IMAGES, PARAMETERS, Plan, main, table


def test_one_gpu_worked_example() -> None:
    plan = Plan(views_per_second=5120, files_per_core=200, cores_per_gpu=16)
    step = plan.step(1)
    assert step == pytest.approx((100.0, 80.0, 0.0, 0.0))  # 512 views; 256 files on 16 cores
    assert (step.total, step.limit) == (pytest.approx(100.0), "computation")
    assert plan.hours(1) == pytest.approx(110 * (IMAGES // 256) * 0.1 / 3600)


def test_few_cores_limit_the_step() -> None:
    step = Plan(views_per_second=5120, files_per_core=200, cores_per_gpu=8).step(1)
    assert (step.total, step.limit) == (pytest.approx(160.0), "decoding")


def test_many_gpus_wait_for_gradients_that_exceed_the_backward_pass() -> None:
    plan = Plan(views_per_second=5120, files_per_core=1000, latency_us=0, network_gbyte=25)
    step = plan.step(64)
    gradients = 2 * 63 / 64 * 4 * PARAMETERS / 25e6  # ms
    paths = 63 / 64 * 4 * 512 * 16 / 25e6
    assert step[:1] + step[2:] == pytest.approx((100 / 64, gradients, paths))
    assert step.total == pytest.approx(100 / 64 + gradients - 2 / 3 * 100 / 64 + paths)
    assert step.limit == "all-reduce"
    larger = Plan(views_per_second=5120, files_per_core=1000, latency_us=0, network_gbyte=25, batch=4096).step(64)
    assert larger.limit == "computation"


def test_the_table_has_a_row_for_each_number_of_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(views_per_second=5120, files_per_core=200, gpus=(1, 8), dollars_per_hour=3.0)
    assert main(plan) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == table(plan).splitlines()
    assert [line.split("|")[1].strip() for line in lines] == ["GPUs", "---:", "1", "8"]
    assert lines[0].count("|") == lines[-1].count("|")
    assert "cost, $" in lines[0]
    with pytest.raises(UserError, match="must be above 0"):
        main(Plan(views_per_second=0, files_per_core=200))
