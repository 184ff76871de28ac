import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from codinet import RoutedOutput, create_model
from codinet.cost import CostTable, block_costs
from codinet.data import Dataset
from codinet.errors import UserError
from codinet.evaluate import evaluate, evaluate_test_set, exact_inference, impossible_figure
from codinet.train.splits import join

# Skipping all costs 100 + 5 + 2; running the first block adds 10, the second 20 - 5.
TABLE = CostTable(run_N=(10, 20), skip_N=(0, 5), router_N=(1, 1), fixed=100, image_shape=(1, 2, 2), paper_unit=2)
PATHS = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
LABELS = torch.tensor([0, 1, 1, 0])


def batches(size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Images whose only content is their number."""
    yield from zip(torch.arange(4).split(size), LABELS.split(size), strict=True)


def routed(path_TN: torch.Tensor) -> Callable[[torch.Tensor], RoutedOutput]:
    """Answers class 0 for all with probability 0.8, and routes image t along row t."""

    def model(number_B: torch.Tensor) -> RoutedOutput:
        path_BN = path_TN[number_B]
        logits_BK = torch.tensor([0.8, 0.2]).log().expand(len(number_B), 2)
        return RoutedOutput(logits_BK, torch.stack([torch.zeros_like(path_BN), path_BN], dim=-1), path_BN)

    return model


@pytest.mark.parametrize("size", [1, 3, 4])
def test_a_worked_example(size: int) -> None:
    found = evaluate(routed(PATHS), batches(size), TABLE)
    assert found.accuracy == 50
    assert found.loss == pytest.approx(-(torch.tensor([0.8, 0.2]).log().mean().item()))
    assert found.macs == (3 * 117 + 132) / 4
    assert found.paper_gmaccs == pytest.approx(found.macs * 2 / 1e9)
    assert found.cost_share == pytest.approx(found.macs / 130)
    assert found.mean_blocks == 1.25
    assert found.distinct_paths == 2
    assert found.path_entropy == pytest.approx(0.811278, abs=1e-6)  # of shares 3/4 and 1/4
    assert (found.always_on, found.always_off) == (1, 0)
    assert found.n == 4
    assert not found.collapsed


def test_the_table_has_a_row_for_each_image_in_order() -> None:
    paths = evaluate(routed(PATHS), batches(3), TABLE).paths
    assert paths.path_TN.dtype == torch.uint8
    assert paths.path_TN.tolist() == PATHS.int().tolist()
    assert paths.label_T.tolist() == LABELS.tolist()
    assert paths.prediction_T.tolist() == [0, 0, 0, 0]
    assert paths.confidence_T.tolist() == pytest.approx([0.8] * 4)
    assert paths.macs_T.tolist() == [117, 117, 132, 117]
    assert paths.run_probability_TN[0].tolist() == pytest.approx([0.731059, 0.5], abs=1e-6)


@pytest.mark.parametrize(
    ("paths", "bits", "on", "off"),
    [
        ([[0, 0], [0, 1], [1, 0], [1, 1]], 2.0, 0, 0),
        ([[0, 0], [0, 0], [1, 0], [0, 0]], 0.811278, 0, 1),
        ([[0, 1], [0, 1], [0, 1], [0, 1]], 0.0, 1, 1),
        ([[1, 1], [1, 1], [1, 1], [1, 1]], 0.0, 2, 0),
    ],
)
def test_entropy_and_constant_blocks(paths: list[list[int]], bits: float, on: int, off: int) -> None:
    found = evaluate(routed(torch.tensor(paths).float()), batches(2), TABLE)
    assert found.path_entropy == pytest.approx(bits, abs=1e-6)
    assert (found.always_on, found.always_off) == (on, off)
    assert found.collapsed == (bits == 0)


def test_the_summary_is_the_figures_without_the_table() -> None:
    found = evaluate(routed(PATHS), batches(4), TABLE)
    assert set(found.summary()) == {
        *("accuracy", "loss", "macs", "paper_gmaccs", "cost_share", "mean_blocks", "distinct_paths"),
        *("path_entropy", "always_on", "always_off", "n"),
    }


@pytest.mark.parametrize(
    ("classes", "labels", "expected"), [(5, [0, 4, 1, 2], None), (7, [0, 4, 5, 6], 50.0), (7, [0, 1, 2, 3], 100.0)]
)
def test_top_five_needs_more_than_five_classes(classes: int, labels: list[int], expected: float | None) -> None:
    def model(number_B: torch.Tensor) -> RoutedOutput:
        path_BN = PATHS[number_B]
        logits_BK = -torch.arange(float(classes)).expand(len(number_B), classes)  # the first class is the likeliest
        return RoutedOutput(logits_BK, torch.zeros(*path_BN.shape, 2), path_BN)

    parts = [
        evaluate(model, [(number, label)], TABLE)
        for number, label in zip(torch.arange(4).split(3), torch.tensor(labels).split(3), strict=True)
    ]
    found = evaluate(model, [(torch.arange(4), torch.tensor(labels))], TABLE)
    assert found.top5_accuracy == join(parts, TABLE).top5_accuracy == expected
    assert found.summary().get("top5_accuracy") == expected
    assert ("top5_accuracy" in found.summary()) == (expected is not None)


def test_equal_logits_do_not_make_the_top_five_worse_than_the_top_one() -> None:
    logits_BK, paths_BN = torch.zeros(4, 9), torch.ones(4, 2)
    output = RoutedOutput(logits_BK, torch.zeros(4, 2, 2), paths_BN)
    label = int(logits_BK.softmax(dim=1).max(dim=1).indices[0])
    found = evaluate(lambda _images: output, [(torch.zeros(4), torch.full((4,), label))], TABLE)
    assert found.accuracy == found.top5_accuracy == 100


@pytest.mark.parametrize("training", [True, False])
def test_a_network_is_evaluated_twice_alike_and_left_as_it_was(training: bool) -> None:
    torch.manual_seed(0)
    model = create_model("resnet20", num_classes=2, in_channels=1).train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    table = block_costs(model, (1, 8, 8))
    loader = [(torch.randn(3, 1, 8, 8), torch.tensor([0, 1, 0])) for _ in range(2)]
    one, other = evaluate(model, loader, table), evaluate(model, loader, table)
    assert one.summary() == other.summary()
    assert all(torch.equal(a, b) for a, b in zip(one.paths, other.paths, strict=True))
    assert model.training is training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_parts_that_are_frozen_stay_so() -> None:
    model = create_model("resnet20").train()
    model.get_submodule("bn1").eval()
    evaluate(model, [(torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.long))], block_costs(model, (3, 32, 32)))
    assert model.training
    assert not model.get_submodule("bn1").training


def test_the_mode_is_restored_even_when_the_images_do_not_fit() -> None:
    model = create_model("resnet20", in_channels=1).train()
    with pytest.raises(UserError, match="must have 1 channels"):
        evaluate(model, [(torch.randn(2, 3, 8, 8), torch.tensor([0, 1]))], block_costs(model, (1, 8, 8)))
    assert model.training


def test_what_does_not_matter_for_a_row_is_the_rest_of_its_batch() -> None:
    torch.manual_seed(0)
    model = create_model("resnet20", num_classes=2, in_channels=1)
    images, labels = torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 0, 1, 0, 1])
    table = block_costs(model, (1, 8, 8))
    whole = evaluate(model, [(images, labels)], table).paths
    single = evaluate(model, zip(images.split(1), labels.split(1), strict=True), table).paths
    assert torch.equal(whole.path_TN, single.path_TN)
    assert torch.allclose(whole.confidence_T, single.confidence_T, atol=1e-5)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.tensor([0, 2]), "Labels must be from 0 to 1, the classes of the network; got labels from 0 to 2"),
        (torch.tensor([-1, 0]), "got labels from -1 to 0"),
        (torch.tensor([0.0, 1.0]), "one int64 for each of the 2 images of a batch; got torch.float32"),
        (torch.tensor([0, 1, 0]), r"got torch.int64 of shape \(3,\)"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: torch.Tensor, words: str) -> None:
    model = create_model("resnet20", num_classes=2, in_channels=1)
    with pytest.raises(UserError, match=words):
        evaluate(model, [(torch.randn(2, 1, 8, 8), labels)], block_costs(model, (1, 8, 8)))


def test_no_images_cannot_be_evaluated() -> None:
    with pytest.raises(UserError, match="There are no images to evaluate on"):
        evaluate(routed(PATHS), [], TABLE)


@pytest.mark.parametrize("model", [None, "resnet20", torch.zeros(2)])
def test_a_model_that_is_not_callable_is_rejected(model: Any) -> None:
    with pytest.raises(UserError, match="model must be a function, got "):
        evaluate(model, batches(2), TABLE)


@pytest.mark.parametrize(
    ("loader", "got"),
    [
        (None, "batches of \\(images, labels\\), got None"),
        ([torch.zeros(2)], "got a tensor of 2"),
        ([torch.zeros(2, 1)], "got a tensor of 2×1"),
        ([(torch.zeros(2),)], "got a tuple of 1: a tensor of 2"),
        ([(torch.zeros(2), torch.zeros(2), torch.zeros(2))], "got a tuple of 3: a tensor of 2"),
        ([(torch.zeros(2), [0, 1])], r"got a tuple of 2: a tensor of 2 .*, \[0, 1\]"),
        ([{"images": 1, "labels": 2}], "got {'images': 1"),
        ([3], "got 3"),
    ],
)
def test_a_loader_that_does_not_give_pairs_is_rejected(loader: Any, got: str) -> None:
    with pytest.raises(UserError, match=got):
        evaluate(routed(PATHS), loader, TABLE)


@pytest.mark.parametrize(
    ("change", "odd"),
    [
        ({}, None),
        ({"accuracy": 100}, None),
        ({"accuracy": 100.01}, "accuracy"),
        ({"accuracy": "94"}, "accuracy"),
        ({"loss": float("nan")}, "loss"),
        ({"macs": 0.0}, "macs"),
        ({"mean_blocks": 3}, "mean_blocks"),
        ({"n": True}, "n"),
        ({"n": 4.0}, "n"),
        ({"distinct_paths": 0}, "distinct_paths"),
        ({"path_entropy": None}, "path_entropy"),
        ({"top5_accuracy": 80}, None),
        ({"top5_accuracy": 100.5}, "top5_accuracy"),
        ({"top5_accuracy": "80"}, "top5_accuracy"),
    ],
)
def test_figures_that_no_evaluation_has_are_named(change: dict[str, Any], odd: str | None) -> None:
    figures = evaluate(routed(PATHS), batches(4), TABLE).summary()
    assert impossible_figure({**figures, **change}, blocks=2) == odd
    assert impossible_figure([], blocks=2) == "accuracy"


def test_a_data_set_is_evaluated_in_evaluation_mode_and_the_network_left_as_it_was(few: Dataset) -> None:
    torch.manual_seed(0)
    model = create_model("resnet20", in_channels=1).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = evaluate_test_set(model, few, torch.device("cpu"))
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert found.summary() == evaluate_test_set(model.eval(), few, torch.device("cpu")).summary()


@pytest.mark.parametrize("deterministic", [True, False])
def test_exact_inference_keeps_the_users_choice_of_kernels(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", deterministic)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with exact_inference():
        assert torch.backends.cudnn.deterministic is deterministic
        assert not torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.deterministic is deterministic
    assert torch.backends.cudnn.benchmark


PRECISIONS = {
    "none": "",
    "matmul, the old way": "torch.set_float32_matmul_precision('high')",
    "all": "torch.backends.fp32_precision = 'tf32'",
    "convolutions": "torch.backends.cudnn.conv.fp32_precision = 'tf32'",
}


@pytest.mark.parametrize("choice", PRECISIONS.values(), ids=PRECISIONS)
def test_exact_inference_has_no_tf32_and_restores_the_users_precision(choice: str) -> None:
    """In a process of its own, because some initial settings of torch cannot be restored once they were changed."""
    code = f"""
import torch
from codinet.evaluate import exact_inference

def precisions():
    b = torch.backends
    return [part.fp32_precision for part in (b, b.cudnn, b.cuda.matmul, b.cudnn.conv, b.cudnn.rnn)]

def inherited():  # by what the user did not set
    torch.backends.fp32_precision = torch.backends.cudnn.fp32_precision = "none"
    none = precisions()
    torch.backends.fp32_precision = "ieee"
    return none, precisions()

{choice}
before = precisions()
with exact_inference():
    assert precisions()[2:] == ["ieee"] * 3, precisions()
assert precisions() == before, (before, precisions())
after = inherited()
"""
    code += "print(after)"
    plain = code.replace("with exact_inference():", "if False:")
    restored, never_changed = (
        subprocess.run([sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, check=False)
        for text in (code, plain)
    )
    assert restored.returncode == 0, restored.stderr
    assert restored.stdout == never_changed.stdout


class OnMPS(torch.Tensor):
    """A tensor that claims to be on Apple's MPS, which has no float64."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("mps")

    def double(self) -> torch.Tensor:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor)


def test_float64_is_computed_on_the_cpu_where_the_device_has_none() -> None:
    def model(number_B: torch.Tensor) -> RoutedOutput:
        return RoutedOutput(*(part.as_subclass(OnMPS) for part in routed(PATHS)(number_B)))

    assert evaluate(model, batches(3), TABLE).summary() == evaluate(routed(PATHS), batches(3), TABLE).summary()
