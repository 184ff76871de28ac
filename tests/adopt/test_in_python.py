"""Adopted networks are torch modules: copies, precisions, image sizes, compilation, several processes, state dicts."""

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from codinet import UserError, create_model, load, save
from codinet.adopt import import_vision
from codinet.adopt.blank import meta_copy, without_initial_weights
from codinet.model import RoutedNetwork
from codinet.relaxation import gumbel

KINDS = ("test_convnext", "test_resnet", "test_vit")  # maps in a chain, a ResNet, tokens


def made(name: str) -> RoutedNetwork:
    torch.manual_seed(0)
    return create_model(f"timm:{name}", num_classes=5, image_shape=(3, 32, 32)).eval()


@pytest.fixture(scope="module")
def networks() -> dict[str, RoutedNetwork]:
    """One network of each kind; tests leave them as they are."""
    try:
        import_vision("timm")
    except UserError as error:
        pytest.skip(str(error))
    return {name: made(name) for name in KINDS}


def images(*size: int, number: int = 2) -> torch.Tensor:
    return torch.randn(number, 3, *(size or (32, 32)), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_pickles_are_independent(networks: dict[str, RoutedNetwork], kind: str) -> None:
    network, x = networks[kind], images()
    with torch.no_grad():
        wished = network(x)
        copies: list[RoutedNetwork] = [copy.deepcopy(network), pickle.loads(pickle.dumps(network))]
        for other in copies:
            got = other(x)
            assert all(torch.equal(a, b) for a, b in zip(got, wished, strict=True))
            assert other.config == network.config
        for parameter in copies[0].parameters():
            parameter.zero_()
        assert torch.equal(network(x).logits_BK, wished.logits_BK)
        assert torch.equal(copies[1](x).logits_BK, wished.logits_BK)
        assert not torch.equal(copies[0](x).logits_BK, wished.logits_BK)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close(networks: dict[str, RoutedNetwork], kind: str, dtype: torch.dtype) -> None:
    network, x, path = networks[kind], images(), torch.ones(len(networks[kind].blocks))
    half = copy.deepcopy(network).to(dtype)
    with torch.no_grad():
        wished, got = network(x, force=path), half(x.to(dtype), force=path)
    assert {parameter.dtype for parameter in half.parameters()} == {dtype}
    assert got.logits_BK.dtype == torch.float32
    scale = wished.logits_BK.abs().max().item()
    torch.testing.assert_close(got.logits_BK, wished.logits_BK, rtol=0, atol=0.05 * scale)


@pytest.mark.parametrize("kind", KINDS)
def test_images_need_not_be_square(networks: dict[str, RoutedNetwork], kind: str) -> None:
    network, x = networks[kind], images(32, 64)
    plain = import_vision("timm").create_model(kind, num_classes=5, **({"img_size": 32} if "vit" in kind else {}))
    names = {name.removeprefix("module."): value for name, value in network.state_dict().items()}
    plain.load_state_dict({name: value for name, value in names.items() if not name.startswith("routers.")})
    with torch.no_grad():
        got = network(x, force=torch.ones(len(network.blocks))).logits_BK
        torch.testing.assert_close(got, plain.eval()(x), rtol=1e-5, atol=1e-5)
        assert network(x).path_BN.shape == (2, len(network.blocks))


def test_a_network_for_one_size_says_which() -> None:
    import_vision("timm")
    network = create_model("timm:test_vit3", num_classes=5, image_shape=(3, 32, 48)).eval()
    with torch.no_grad():
        assert network(images(32, 48)).logits_BK.shape == (2, 5)
    with pytest.raises(UserError, match="takes images of 3×32×48 only, got a tensor of 2×3×48×32"):
        network(images(48, 32))


@pytest.mark.parametrize("kind", ["test_resnet", "test_vit"])
def test_the_forward_compiles_to_one_graph(networks: dict[str, RoutedNetwork], kind: str, tmp_path: Path) -> None:
    network, x = networks[kind], images()
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    with torch.no_grad():
        wished, got = network(x), compiled(x)
    assert torch.equal(got.path_BN, wished.path_BN)
    torch.testing.assert_close(got.logits_BK, wished.logits_BK)
    save(compiled, tmp_path)  # type: ignore[arg-type]
    assert load(tmp_path).config == network.config


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:Grad strides do not match")  # of dimensions of size one, which costs nothing
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("kind", KINDS)
def test_several_processes_can_train_it(networks: dict[str, RoutedNetwork], kind: str) -> None:
    network = copy.deepcopy(networks[kind]).train()
    wrapped = DistributedDataParallel(network)  # every parameter is used, so none has to be looked for
    for _ in range(2):  # DistributedDataParallel complains in the second step if the first left parameters out
        wrapped(images(number=4), decide=gumbel).logits_BK.square().sum().backward()
    assert [name for name, parameter in network.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_dict_restores_the_network(networks: dict[str, RoutedNetwork], kind: str) -> None:
    network, x = networks[kind], images()
    torch.manual_seed(9)
    other = create_model(f"timm:{kind}", num_classes=5, image_shape=(3, 32, 32)).eval()
    with torch.no_grad():
        assert not torch.equal(other(x).logits_BK, network(x).logits_BK)
        other.load_state_dict(network.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(other(x), network(x), strict=True))


class Mixed(nn.Module):
    """Parameters that are set in several ways, and buffers that the state dict has or lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.given = nn.Linear(40, 40), nn.Parameter(torch.full((3,), 7.0))
        nn.init.trunc_normal_(self.layer.weight, std=0.02)
        nn.init.constant_(tensor=self.layer.bias, val=0.5)
        self.index: torch.Tensor
        self.register_buffer("index", torch.arange(4).mul_(2), persistent=False)
        self.norm = nn.BatchNorm1d(4)


def test_without_initial_weights_only_parameters_are_left_out() -> None:
    drawn: list[torch.Tensor] = []
    torch.manual_seed(0)
    with without_initial_weights():
        module, state = Mixed(), torch.get_rng_state()
        drawn.append(torch.zeros(3).normal_())
    torch.manual_seed(0)
    assert torch.equal(state, torch.get_rng_state())  # nothing was drawn
    assert torch.equal(module.index, torch.tensor([0, 2, 4, 6]))
    assert module.norm.running_var is not None
    assert torch.equal(module.norm.running_var, torch.ones(4))
    assert torch.equal(module.given, torch.full((3,), 7.0))
    assert drawn[0].abs().sum() > 0  # other tensors are
    assert torch.equal(Mixed().layer.bias, torch.full((40,), 0.5))


def test_a_copy_on_the_meta_device_leaves_the_module_alone() -> None:
    module = Mixed().train()
    module.given.requires_grad_(False)
    twin = meta_copy(module)
    assert all(tensor.is_meta for tensor in [*twin.parameters(), *twin.buffers()])
    assert (twin.given.requires_grad, twin.layer.weight.requires_grad) == (False, True)
    assert module.training
    assert not twin.training
    assert not any(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()])
