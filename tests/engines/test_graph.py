"""The graph engine reproduces the network's output. On the CPU its kernels are interpreted, so images are small."""

import copy
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet import kernels
from codinet.bench.engine_speed import contestants, pick_engines
from codinet.bench.run_rate import settle, with_run_rate
from codinet.create import create_model
from codinet.cuda_switch import why_no_switch
from codinet.engines.choose import has_graph
from codinet.engines.graph import GraphEngine, StaticGraphEngine, why_not
from codinet.errors import UserError
from codinet.kernels.network.network_tuning import SMALL, Cut, Tuning, tunings_for, uniform
from codinet.model import RoutedNetwork
from codinet.relaxation import hard

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CPU = torch.device("cpu")
Same = Callable[..., None]

if not kernels.available(DEVICE):
    pytest.skip("needs Triton", allow_module_level=True)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(3))


class Adopted(RoutedNetwork):
    """A network with unknown blocks."""

    routers = None


def drawn(images: torch.Tensor, run_rate: float = 0.5) -> RoutedNetwork:
    torch.manual_seed(0)
    return with_run_rate(settle(create_model("resnet14"), images), images, run_rate)


@pytest.fixture(scope="module")
def model(images: torch.Tensor) -> RoutedNetwork:
    return drawn(images)


@pytest.fixture(scope="module")
def engine(model: RoutedNetwork) -> GraphEngine:
    return GraphEngine(model, device=DEVICE)


def compare(engine: GraphEngine, model: RoutedNetwork, images: torch.Tensor, same: Same, **how: object) -> None:
    output = engine(images.to(DEVICE), **how)  # type: ignore[arg-type]
    threshold = how.pop("threshold", 0.5)
    with torch.no_grad():
        reference = model(images.contiguous(), decide=partial(hard, threshold=threshold), **how)  # type: ignore[arg-type]
    same(type(output)(*(part.cpu() for part in output)), reference)


@pytest.mark.parametrize("run_rate", [0.0, 0.5, 1.0])
def test_engine_equals_the_network(run_rate: float, images: torch.Tensor, assert_same: Same) -> None:
    model = drawn(images, run_rate)
    engine = GraphEngine(model, device=DEVICE)
    kept = images.clone()
    compare(engine, model, images if run_rate < 0.5 else images[:2], assert_same)
    compare(engine, model, images[:1], assert_same)
    assert torch.equal(images, kept)


def test_any_batch_and_memory_format(
    engine: GraphEngine, model: RoutedNetwork, images: torch.Tensor, assert_same: Same
) -> None:
    for batch in (images[:3], images[3:].to(memory_format=torch.channels_last)):
        compare(engine, model, batch, assert_same)


@pytest.mark.parametrize("shape", [(3, 13, 9), (1, 6, 20)])
def test_any_image_size(shape: tuple[int, int, int], assert_same: Same) -> None:
    images = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model: RoutedNetwork = settle(create_model("resnet20", in_channels=shape[0]), images)
    model = with_run_rate(model, images, 0.5)
    compare(GraphEngine(model, device=DEVICE), model, images, assert_same)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_path(
    engine: GraphEngine, model: RoutedNetwork, images: torch.Tensor, assert_same: Same, data: st.DataObject
) -> None:
    number = data.draw(st.integers(1, 2))
    blocks = len(model.blocks)
    rows = data.draw(st.lists(st.integers(0, 2**blocks - 1), min_size=number, max_size=number))
    path = torch.tensor([[row >> k & 1 for k in range(blocks)] for row in rows])
    compare(engine, model, images[:number], assert_same, force=path)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.8, 1.0])
def test_any_threshold(
    threshold: float, engine: GraphEngine, model: RoutedNetwork, images: torch.Tensor, assert_same: Same
) -> None:
    compare(engine, model, images[:1], assert_same, threshold=threshold)


def test_a_forced_path_and_a_threshold_are_forgotten(
    engine: GraphEngine, model: RoutedNetwork, images: torch.Tensor, assert_same: Same
) -> None:
    compare(engine, model, images[:1], assert_same, force=torch.zeros(6))
    compare(engine, model, images[:1], assert_same, threshold=0.9)
    compare(engine, model, images[:1], assert_same)


@pytest.mark.parametrize("form", ["taps", "rows", "pairs"])
def test_every_form_of_convolution(form: str, model: RoutedNetwork, images: torch.Tensor, assert_same: Same) -> None:
    # As in the table, the widest group uses taps: in float32 its pairs need 409,600 bytes of shared memory.
    cut = Cut(form, 16, pipeline_depth=2)  # type: ignore[arg-type]
    tuning = Tuning((cut, cut, Cut("taps", 16, pipeline_depth=2)))
    compare(GraphEngine(model, device=DEVICE, tuning=tuning), model, images[1:2], assert_same)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="the interpreter has no limit; test_compiles asks the compiler")
def test_a_tuning_that_the_device_cannot_run_is_refused_before_launch(
    model: RoutedNetwork, images: torch.Tensor
) -> None:
    too_large = uniform(Cut("taps", 256, pipeline_depth=8), 3)
    engine = GraphEngine(model, device=DEVICE, dtype=torch.bfloat16, tuning=too_large)
    sentence = r"network_kernel needs [\d,]+ bytes of shared memory per program, and the device has [\d,]+"
    for ask in (engine, engine.launch_for):
        with pytest.raises(UserError, match=sentence):
            ask(images[:1].to(DEVICE))
    torch.cuda.synchronize()  # nothing was launched, so nothing failed


def test_the_smallest_tuning_gives_the_same(model: RoutedNetwork, images: torch.Tensor, assert_same: Same) -> None:
    tuning = tunings_for(1, 0, exact=True)[-1]
    assert tuning == uniform(SMALL, 3)
    compare(GraphEngine(model, device=DEVICE, tuning=tuning), model, images[:1], assert_same)


def test_half_precision_is_near(model: RoutedNetwork, images: torch.Tensor) -> None:
    path = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 1, 0, 0, 1, 0]])
    with torch.no_grad():
        reference = model(images[:2], force=path)
    output = GraphEngine(model, dtype=torch.float16, device=DEVICE)(images[:2].to(DEVICE), force=path)
    assert output.logits_BK.dtype == output.scores_BN2.dtype == torch.float32
    for ours, theirs in zip(output, reference, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-2 * theirs.abs().max().item(), rtol=0)


def test_the_static_twin(model: RoutedNetwork, images: torch.Tensor) -> None:
    for path in (None, torch.tensor([1, 0, 0, 1, 0, 1])):
        with torch.no_grad():
            reference = model(images[:1], force=torch.ones(6) if path is None else path)
        output = StaticGraphEngine(model, path=path, device=DEVICE)(images[:1].to(DEVICE))
        torch.testing.assert_close(output.logits_BK.cpu(), reference.logits_BK, atol=1e-5, rtol=1e-5)
        assert torch.equal(output.path_BN.cpu(), reference.path_BN)
        assert not output.scores_BN2.any()


def test_a_static_network(images: torch.Tensor, assert_same: Same) -> None:
    torch.manual_seed(2)
    model = settle(create_model("resnet14", routed=False), images)
    engine = GraphEngine(model, device=DEVICE)
    compare(engine, model, images[:1], assert_same)
    compare(engine, model, images[:1], assert_same, force=torch.tensor([1, 0, 0, 1, 0, 1]))


def test_an_engine_is_a_snapshot(model: RoutedNetwork, images: torch.Tensor) -> None:
    changed = copy.deepcopy(model)
    engine = GraphEngine(changed, device=DEVICE)
    before = engine(images[:1].to(DEVICE))
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.zero_()
    after = engine(images[:1].to(DEVICE))
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_answers_outlive_the_next_call(engine: GraphEngine, images: torch.Tensor) -> None:
    first = engine(images[:1].to(DEVICE))
    kept = first.logits_BK.clone()
    engine(images[1:2].to(DEVICE))
    assert torch.equal(first.logits_BK, kept)


def test_only_a_few_shapes_are_kept(engine: GraphEngine) -> None:
    for width in range(1, 11):
        engine(torch.zeros(1, 3, 1, width, device=DEVICE), force=torch.zeros(6))
    assert len(engine.ready) == 8


@pytest.mark.skipif(DEVICE.type != "cuda", reason="the interpreter is not made for threads")
def test_threads_take_turns(engine: GraphEngine, images: torch.Tensor) -> None:
    single = [engine(image[None].to(DEVICE)).logits_BK for image in images]
    found: dict[int, torch.Tensor] = {}

    def ask(place: int) -> None:
        for _ in range(20):
            found[place] = engine(images[place][None].to(DEVICE)).logits_BK
            torch.cuda.synchronize()

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[place], one) for place, one in enumerate(single))


def test_what_it_does_not_support_is_rejected(images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[tuple[RoutedNetwork, str]] = [
        (create_model("resnet50"), "basic blocks"),
        (create_model("resnet20", router="rnn"), "supports fc routers only"),
        (create_model("resnet20", router="cnn"), "supports fc routers only"),
        (Adopted(), "adopted"),
    ]
    for network, said in refused:
        with pytest.raises(UserError, match=said):
            GraphEngine(network, device=DEVICE)
    for words, said in (
        ({"dtype": torch.float64}, "float64"),
        ({"threshold": float("nan")}, "threshold must be a finite number from 0 to 1, got nan"),
        ({"tuning": "fast"}, "tuning must be a Tuning"),
        ({"tuning": uniform(SMALL, 2)}, "needs 3 cuts"),
        ({"device": "abacus"}, "Unknown device 'abacus'"),
    ):
        with pytest.raises(UserError, match=said):
            GraphEngine(create_model("resnet20"), **{"device": DEVICE, **words})  # type: ignore[arg-type]
    # With a GPU the interpreter is off.
    with pytest.raises(UserError, match="float32 or float16" if DEVICE == CPU else "needs a CUDA device"):
        GraphEngine(create_model("resnet20"), device=CPU, dtype=torch.bfloat16)
    monkeypatch.setattr(kernels, "available", lambda _device: False)
    assert "needs a CUDA device" in str(why_not(create_model("resnet20"), CPU))


@pytest.mark.parametrize("router", ["rnn", "cnn"])
def test_a_static_engine_takes_a_network_with_any_router(router: str, images: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = settle(create_model("resnet14", router=router), images)
    assert why_not(model, DEVICE) is not None
    assert why_not(model, DEVICE, routers=False) is None
    with torch.no_grad():
        reference = model(images[:1], force=torch.ones(6))
    output = StaticGraphEngine(model, device=DEVICE)(images[:1].to(DEVICE))
    torch.testing.assert_close(output.logits_BK.cpu(), reference.logits_BK, atol=1e-5, rtol=1e-5)


def test_wide_networks_are_left_to_other_engines() -> None:
    with torch.device("meta"):
        assert "widths of 16, 32 and 64" in str(why_not(create_model("resnet32x4"), DEVICE))


def test_why_not_does_not_copy_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    model = create_model("resnet20")

    def refuse(*_args: object) -> None:
        raise AssertionError("copied")

    monkeypatch.setattr(type(model), "__deepcopy__", refuse, raising=False)
    assert why_not(model, DEVICE) is None


@pytest.mark.parametrize("path", [torch.ones(8), torch.full((9,), 2), [1] * 9, torch.full((9,), float("nan"))])
def test_an_invalid_static_path_is_rejected(path: Any) -> None:
    with pytest.raises(UserError, match=r"path must be a tensor of numbers, 9|path must have a 0 or 1 for each block"):
        StaticGraphEngine(create_model("resnet20"), path=path, device=DEVICE)


def test_the_interpreter_is_never_chosen() -> None:
    assert not has_graph(create_model("resnet20"), CPU)


def test_which_engines_a_bench_runs_on_a_gpu() -> None:
    gpu = torch.device("cuda")
    switch = [] if why_no_switch(gpu) else ["switch"]
    for batch in (1, 64):
        assert pick_engines((), batch, create_model("resnet20"), gpu) == ["masked", "gather", "graph"]
        assert pick_engines((), batch, create_model("resnet20", router="rnn"), gpu) == ["masked", "gather", *switch]
    assert pick_engines((), 1, create_model("resnet20", routed=False), gpu) == []
    with pytest.raises(UserError, match="fc routers"):
        pick_engines(("graph",), 1, create_model("resnet20", router="rnn"), gpu)


def test_a_contest_in_half_precision(model: RoutedNetwork, images: torch.Tensor) -> None:
    model, few = copy.deepcopy(model).to(DEVICE), images[:1].to(DEVICE, torch.float16)
    contest = contestants(model, ["masked", "gather", "graph"], (3, 8, 8), threads=1, dtype=torch.float16)
    answers = {entry.name: entry.call(few).logits_BK.float().cpu() for entry in contest if entry.family == "torch"}
    assert {"static", "masked", "gather", "graph"} <= set(answers)
    assert next(model.parameters()).dtype == torch.float32  # the caller's network stays as it is
    with torch.no_grad():
        reference = model(few.float()).logits_BK.cpu()
    for name in ("masked", "gather", "graph"):
        torch.testing.assert_close(answers[name], reference, atol=2e-2 * reference.abs().max().item(), rtol=0)
