"""Publishing a run on the Hugging Face hub and loading it again, against a server on this machine.

tests/docs runs the examples of the documentation against the same server.
"""

from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from tests.hub_server import COMMIT, UPLOAD_WARNING, Hub

from codinet import CoDiNet, UserError, open_run


@pytest.mark.filterwarnings(UPLOAD_WARNING)
def test_a_published_run_is_the_same_network(finished_run: Path, hub: Hub) -> None:
    run = open_run(finished_run)
    address = run.push_to_hub("me/digits")
    assert str(address) == f"{hub.address}/me/digits/commit/{COMMIT}"
    assert sorted(hub.files) == [f"me/digits/{name}" for name in ("README.md", "config.json", "model.safetensors")]
    assert len(hub.objects) == 1  # the weights go through Git LFS
    model, own = CoDiNet.from_pretrained("me/digits"), run.load_model()
    assert model.config == own.config
    assert (model.config.classes, model.config.mean, model.config.std) == (
        run.data.classes,
        run.data.mean,
        run.data.std,
    )
    images = torch.randn(4, *run.data.image_shape)
    assert torch.equal(model(images).logits_BK, own(images).logits_BK)
    card = ModelCard(hub.files["me/digits/README.md"].decode())
    assert 'codinet.load("me/digits")' in card.text
    assert f"| accuracy | {run.load_evaluation()['accuracy']:.2f} % |" in card.text
    assert f"| data | {Path(run.data.name).name} |".replace("_", "\\_") in card.text
    assert card.data.to_dict()["pipeline_tag"] == "image-classification"


def test_a_repository_that_does_not_exist_is_an_error(hub: Hub) -> None:
    with pytest.raises(UserError, match="'me/absent' cannot be loaded"):
        CoDiNet.from_pretrained("me/absent")
    assert not hub.files


def test_a_run_that_is_not_finished_is_not_published(own_run: Path, tmp_path: Path) -> None:
    (own_run / "evaluation.json").unlink()
    for publish in (open_run(own_run).save_pretrained, open_run(own_run).push_to_hub):
        with pytest.raises(UserError, match="is not finished"):
            publish(str(tmp_path / "out"))
