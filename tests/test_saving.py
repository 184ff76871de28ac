"""`codinet.save` and `codinet.load` for every kind of network, and the hub for adopted ones."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import save_file
from tests.hub_server import UPLOAD_WARNING, Hub
from torch import nn

import codinet
from codinet import UserError, create_model, load, make_dynamic, open_run, save, specs
from codinet.adopt import import_vision
from codinet.files import DamagedError, load_tensors
from codinet.model import RoutedNetwork
from codinet.saving import find_config

SHAPE = (3, 32, 32)
FUNCTION = """
import torch
from torch import nn

class DropPath(nn.Module):
    drop_prob = None  # as in many repositories

    def forward(self, x):
        return x

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Conv2d(8, 8, 3, padding=1), DropPath()

    def forward(self, x):
        return x + self.drop(self.layer(x).relu())

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))

def make(num_classes):
    return Net(num_classes)
"""


@pytest.fixture(scope="module")
def timm() -> Any:
    try:
        return import_vision("timm")
    except UserError as error:
        pytest.skip(str(error))


def assert_same(one: RoutedNetwork, other: RoutedNetwork, channels: int = 3) -> None:
    assert not other.training
    assert one.config == other.config
    ours, theirs = one.state_dict(), other.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    x = torch.randn(2, channels, 32, 32, dtype=next(one.parameters()).dtype)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(one.eval()(x), other(x), strict=True))


@pytest.mark.parametrize("words", [{}, {"router": "rnn"}, {"routed": False}])
def test_a_network_of_our_own(words: dict[str, Any], tmp_path: Path) -> None:
    model = create_model("resnet14", num_classes=3, **words)
    assert save(model, tmp_path / "net", results={"accuracy": 50.0}) is None  # type: ignore[func-returns-value]
    assert sorted(file.name for file in (tmp_path / "net").iterdir()) == [
        *("README.md", "config.json", "model.safetensors")
    ]
    loaded = load(str(tmp_path / "net"))
    assert type(loaded) is codinet.CoDiNet
    assert_same(model, loaded)
    assert "| accuracy | 50.00 % |" in (tmp_path / "net" / "README.md").read_text()


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_a_network_by_its_name(timm: Any, name: str, tmp_path: Path) -> None:
    model = create_model(f"timm:{name}", num_classes=3, image_shape=SHAPE, router="cnn").to(torch.bfloat16)
    save(model, tmp_path)
    assert_same(model, load(tmp_path))
    card = ModelCard.load(tmp_path / "README.md")
    assert f"It was saved with timm {timm.__version__}: `pip install timm torchvision`." in card.text
    assert {"timm", name} <= set(card.data.tags)
    _, about = load_tensors(tmp_path / "model.safetensors")
    assert about["versions"] == {"timm": timm.__version__}


def test_a_network_of_timm_that_was_made_dynamic(timm: Any, tmp_path: Path) -> None:
    module = timm.create_model("test_vit", num_classes=4, img_size=32, drop_path_rate=0.2)
    model = make_dynamic(module, blocks=["blocks.[0-3]", "blocks.5"])
    with pytest.raises(UserError, match=r"does not know how it was built; save it with codinet\.save"):
        model.save_pretrained(tmp_path)
    save(model, tmp_path)
    loaded = load(tmp_path)
    assert_same(model, loaded)
    assert loaded.config is not None
    assert (loaded.config.arch, loaded.config.blocks) == ("timm:test_vit", "blocks.[0-3],blocks.5")
    assert (loaded.config.drop_path, loaded.config.image_shape) == (pytest.approx(0.2), SHAPE)
    model.save_pretrained(tmp_path / "again")  # which is possible now


def test_blocks_given_by_their_class_are_saved_by_name(timm: Any) -> None:
    module = timm.create_model("test_convnext", num_classes=4)
    model = make_dynamic(module, blocks=type(module.stages[0].blocks[0]), router=None, image_shape=SHAPE)
    config = find_config(model)
    assert config.blocks == ",".join(str(getattr(block, "name", "")) for block in model.blocks)
    assert not config.routed


def test_another_network_than_its_name_says_is_refused(timm: Any, tmp_path: Path) -> None:
    other = make_dynamic(timm.create_model("test_convnext", num_classes=4, kernel_sizes=3), image_shape=SHAPE)
    with pytest.raises(UserError, match=r"timm:test_convnext builds another network .*conv_dw\.weight is .*; pass"):
        save(other, tmp_path)
    module = timm.create_model("test_resnet", num_classes=4)
    for name, part in module.named_modules():
        if isinstance(part, nn.ReLU):
            module.get_submodule(name.rpartition(".")[0]).add_module(name.rpartition(".")[2], nn.Hardswish())
    with pytest.raises(UserError, match="the same tensors but other logits than this one; pass arch="):
        save(make_dynamic(module, image_shape=SHAPE), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_network_of_torchvision_needs_its_name(timm: Any, tmp_path: Path) -> None:
    models = import_vision("torchvision").models
    model = make_dynamic(models.mobilenet_v3_small(num_classes=4), image_shape=(3, 64, 64))
    with pytest.raises(UserError, match='does not state what builds it; pass arch="timm:NAME", "torchvision:NAME"'):
        save(model, tmp_path)
    with pytest.raises(UserError, match="torchvision:mobilenet_v2 builds another network than this one"):
        save(model, tmp_path, arch="torchvision:mobilenet_v2")
    save(model, tmp_path, arch="torchvision:mobilenet_v3_small")
    loaded = load(tmp_path)
    assert loaded.config == model.config
    assert [block.name for block in loaded.blocks] == [block.name for block in model.blocks]
    with pytest.raises(UserError, match="arch must be left out or torchvision:mobilenet_v3_small"):
        save(model, tmp_path, arch="torchvision:mobilenet_v2")


def test_a_function_of_ones_own_is_called_only_if_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_networks.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(specs, "_allowed", set())
    function = "own_networks:make"
    import own_networks  # type: ignore[import-not-found]

    model = make_dynamic(own_networks.make(3), blocks="blocks.*", image_shape=SHAPE)
    save(model, tmp_path / "net", arch=function)
    assert f'codinet.allow_code("{function}")' in (tmp_path / "net" / "README.md").read_text()
    specs._allowed.clear()  # as in another process
    with pytest.raises(UserError, match=r"built by the function own_networks:make, .* or call codinet\.allow_code"):
        load(tmp_path / "net")
    codinet.allow_code(function)
    assert_same(model, load(tmp_path / "net"))


def test_runs_and_networks_of_the_zoo_are_loaded(finished_run: Path, zoo: Path) -> None:
    assert_same(open_run(finished_run).load_model(), load(finished_run), channels=1)
    name = f"zoo:{next(zoo.glob('*.json')).stem}"
    assert_same(open_run(name).load_model(), load(name), channels=1)


def test_a_run_folder_is_not_overwritten(own_run: Path) -> None:
    before = {file: file.read_bytes() for file in own_run.iterdir() if file.is_file()}
    with pytest.raises(UserError, match="is a run folder, whose files would be replaced; choose another folder"):
        save(load(own_run), own_run)
    assert {file: file.read_bytes() for file in own_run.iterdir() if file.is_file()} == before


def test_folders_of_the_previous_version_and_damaged_ones(tmp_path: Path) -> None:
    model = create_model("resnet14", num_classes=3)
    save(model, tmp_path)
    weights = tmp_path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(DamagedError, match="its contents do not match its checksum"):
        load(tmp_path)
    save_file(model.state_dict(), weights)  # without a digest, as huggingface_hub writes it
    (tmp_path / "config.json").write_text(json.dumps({"arch": "resnet14", "num_classes": 3, "later": 1}))
    assert_same(model, load(tmp_path))
    save_file({**model.state_dict(), "fc.bias": torch.full((3,), torch.nan)}, weights)
    with pytest.raises(UserError, match=r"fc\.bias in .* holds NaN"):
        load(tmp_path)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.one.weight


def test_tensors_that_share_memory_are_written(tmp_path: Path) -> None:
    from codinet.config import ModelConfig
    from codinet.hub import read_folder, write_folder

    module = Tied()
    write_folder(tmp_path, ModelConfig("resnet14"), (2, 2, 2), module.state_dict())
    tensors = read_folder(tmp_path).tensors
    assert torch.equal(tensors["other.weight"], tensors["one.weight"])


@pytest.mark.filterwarnings(UPLOAD_WARNING)
def test_an_adopted_network_goes_to_the_hub_and_back(timm: Any, hub: Hub, tmp_path: Path) -> None:
    model = create_model("timm:test_resnet", num_classes=3, image_shape=SHAPE)
    address = model.push_to_hub("me/adopted", results={"data": "mine"}, private=True, commit_message="first")
    assert address.startswith(f"{hub.address}/me/adopted/commit/")
    assert_same(model, load("me/adopted"))
    shutil.rmtree(tmp_path / "hub-cache")
    hub.files["me/adopted/model.safetensors"] = b"damaged"
    with pytest.raises(UserError, match="is damaged or not a safetensors file"):
        load("me/adopted", revision="main")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("me/absent", "'me/absent' cannot be loaded: .*; pass a folder that codinet.save"),
        (Path("absent"), "'absent' cannot be loaded: there is no such folder; pass a folder"),
        ("timm:resnet18", "is neither a folder nor the name of a repository on the hub; pass a folder"),
        ("../absent", "is neither a folder nor the name of a repository"),
        (5, "A network must be a folder or the name of a repository on the hub, got 5"),
        ("zoo:absent", "absent"),
        (Path(__file__).parent, "does not hold a network: it has no config.json"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_what_cannot_be_loaded(source: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load(source)


@pytest.mark.usefixtures("hub")
def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    model = create_model("resnet14")
    with pytest.raises(UserError, match=r"Options of the hub must be among revision, token, .*, got strict"):
        load("me/absent", strict=False)
    with pytest.raises(UserError, match=r"Options of the hub must be among commit_message, .*, got public"):
        model.push_to_hub("me/net", public=True)
    with pytest.raises(UserError, match="A repository must have a name such as user/name, got 'a b'"):
        model.push_to_hub("a b")
    with pytest.raises(UserError, match="model must be a network from create_model or make_dynamic"):
        save(nn.Linear(2, 2), tmp_path)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Cannot make the folder"):
        save(model, tmp_path / "file" / "net")
    with pytest.raises(UserError, match="save_directory must be a folder, got 5"):
        save(model, 5)  # type: ignore[arg-type]
