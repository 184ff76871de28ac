"""The paper's own numbers: parameters, multiply-adds and its two units."""

from collections.abc import Iterator

import pytest
import torch

from codinet import CostTable, block_costs, create_model
from codinet.backbones import ARCHITECTURES, StrideOn
from codinet.model import RoutedNetwork


@pytest.fixture(autouse=True)
def on_shapes_alone() -> Iterator[None]:
    with torch.device("meta"):
        yield


def parameters(model: RoutedNetwork) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def static_table(name: str, stride_on: StrideOn = "3x3") -> CostTable:
    classes = 10 if ARCHITECTURES[name].image_size == 32 else 1000
    size = ARCHITECTURES[name].image_size
    model = create_model(name, num_classes=classes, routed=False, stride_on=stride_on)
    return block_costs(model, (3, size, size))


@pytest.mark.parametrize(
    ("name", "static", "routed", "printed"),
    [
        ("resnet32", 464_154, 488_760, 0.49),
        ("resnet74", 1_144_666, 1_209_298, 1.21),
        ("resnet110", 1_727_962, 1_826_902, 1.83),
    ],
)
def test_parameters_of_the_cifar_nets(name: str, static: int, routed: int, printed: float) -> None:
    assert parameters(create_model(name, routed=False)) == static
    assert parameters(create_model(name)) == routed
    assert round(routed / 1e6, 2) == printed


@pytest.mark.parametrize(("name", "millions"), [("resnet50", 25.557), ("resnet101", 44.549)])
def test_parameters_of_the_imagenet_nets(name: str, millions: float) -> None:
    assert parameters(create_model(name, num_classes=1000, routed=False)) / 1e6 == pytest.approx(millions, abs=5e-4)


@pytest.mark.parametrize(("name", "blocks"), [("resnet32", 15), ("resnet74", 36), ("resnet110", 54), ("resnet50", 16)])
def test_every_residual_block_is_routed(name: str, blocks: int) -> None:
    assert len(create_model(name).blocks) == ARCHITECTURES[name].blocks == blocks


@pytest.mark.parametrize(
    ("name", "macs", "printed"), [("resnet32", 68_862_592, 0.14), ("resnet110", 252_887_680, 0.51)]
)
def test_macs_of_the_cifar_nets_in_both_units(name: str, macs: int, printed: float) -> None:
    table = static_table(name)
    assert table.static_macs == macs
    assert round(table.paper_gmaccs(table.static_macs), 2) == printed


@pytest.mark.parametrize(("stride_on", "gmacs"), [("1x1", 3.86), ("3x3", 4.09)])
def test_macs_of_resnet50_depend_on_where_it_strides(stride_on: StrideOn, gmacs: float) -> None:
    assert static_table("resnet50", stride_on).static_macs / 1e9 == pytest.approx(gmacs, abs=0.01)


def test_resnet50_in_the_papers_unit_is_the_one_that_strides_on_1x1() -> None:
    table = static_table("resnet50", "1x1")
    assert round(table.paper_gmaccs(table.static_macs), 2) == 3.86
