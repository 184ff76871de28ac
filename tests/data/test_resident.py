import torch

from codinet.data import Dataset, normalise
from codinet.data.resident import Resident, epoch_order

CPU = torch.device("cpu")


def resident(data: Dataset) -> Resident:
    return Resident.of(data.train, data, CPU)


def test_images_stay_bytes_until_they_are_taken(few: Dataset) -> None:
    data = resident(few)
    assert data.images_NCHW.dtype == torch.uint8
    assert len(data) == len(few.train)
    place = torch.tensor([5, 0, 5])
    images_BCHW, labels_B = data.take(place)
    expected = normalise(few.train.images_NCHW[place], torch.tensor(few.mean), torch.tensor(few.std))
    assert torch.equal(images_BCHW, expected)
    assert torch.equal(labels_B, few.train.labels_N[place])


def test_batches_give_everything_once_in_order(few: Dataset) -> None:
    data = resident(few)
    parts = list(data.batches(10))
    assert [len(labels) for _, labels in parts] == [10] * 6 + [4]
    everything, labels = data.take(torch.arange(len(data)))
    assert torch.equal(torch.cat([images for images, _ in parts]), everything)
    assert torch.equal(torch.cat([labels for _, labels in parts]), labels)


def test_an_epochs_order_depends_on_seed_and_epoch_alone() -> None:
    torch.manual_seed(1)
    first = epoch_order(50, seed=3, epoch=7)
    assert torch.rand(1).item() == torch.rand(1, generator=torch.Generator().manual_seed(1)).item()
    assert torch.equal(epoch_order(50, seed=3, epoch=7), first)
    assert first.sort().values.tolist() == list(range(50))


def test_orders_differ_between_epochs_and_seeds() -> None:
    orders = {tuple(epoch_order(50, seed=seed, epoch=epoch).tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
