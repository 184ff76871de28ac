"""The loop of docs/your-data.md on a folder of photos. The weights are new: pretrained ones would be a download."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from codinet import block_costs, compile_engine, make_dynamic
from codinet.adopt import import_vision
from codinet.config import LossConfig
from codinet.data import DATA_ROOT, load, normalise, random_views
from codinet.train import Objective

timm = import_vision("timm")
torch.manual_seed(0)
shape, epochs = (3, 64, 64), 3
photos = load("photos", DATA_ROOT, image_size=64)
mean, std = torch.tensor(photos.mean), torch.tensor(photos.std)
images, labels = normalise(photos.train.images_NCHW[:], mean, std), photos.train.labels_N
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)

model = make_dynamic(timm.create_model("resnet18", num_classes=len(photos.classes)), image_shape=shape)
losses = LossConfig(alpha=1.0, beta=1.0, m_d=1.0)
objective = Objective(model, shape, budget=0.6, steps=epochs * len(loader), losses=losses)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for epoch in range(epochs):
    for image, label in loader:
        views = random_views(image, 2, pad=8, flip=True)
        loss = objective(model(views, decide=objective.decide), label.repeat_interleave(2), views=2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}, share of cost {objective.settle(images):.3f}")

model.eval()
engine = compile_engine(model, batch=1)
output = engine(normalise(photos.test.images_NCHW[:1], mean, std))
share = block_costs(model, shape).share(output.path_BN).item()
print(f"{type(engine).__name__}: blocks run {output.path_BN.int().tolist()[0]}, share of cost {share:.3f}")
