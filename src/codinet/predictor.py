"""Predictions of a trained run for single images: files or uploaded bytes.

`codinet predict` and the explorer both answer through `Predictor.route`. It uses an engine, so skipped blocks are not
computed.
"""

import dataclasses
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from codinet.checks import require_whole
from codinet.cost import block_costs
from codinet.data import read_image
from codinet.data.folder_index import is_image_file
from codinet.data.threads import MAX_THREADS, DaemonThreadPool, count_cores, wait_for
from codinet.data.views import normalise
from codinet.engines.choose import MAX_NUMBERS, compile_engine
from codinet.errors import UserError, first_line
from codinet.evaluate import exact_inference
from codinet.files import unreadable
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput
from codinet.relaxation import hard, run_probability
from codinet.run_reader import RunReader

MakeEngine = Callable[..., Callable[..., RoutedOutput]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image."""

    label: str
    confidence: float
    blocks_run: int
    cost_share: float  # of the static network's MACs
    path: tuple[int, ...]
    run_probability: tuple[float, ...]  # of each block, from its router

    def summary(self) -> dict[str, Any]:
        """The prediction as JSON."""
        return dataclasses.asdict(self)


class Routing(NamedTuple):
    """How a network classified and routed a batch of images; tensors are on the CPU."""

    probability_BK: torch.Tensor  # of each class
    path_BN: torch.Tensor
    run_probability_BN: torch.Tensor


class Predictor:
    """A run's network with the preprocessing and the class names of its data. Threads may use it together.

    Args:
        run: The run.
        device: Where the network runs.
        batch: The number of images per call to prepare for. Any number can be passed.
        make_engine: Makes the engine; see `compile_engine`.
        warn: Is called with one sentence if no engine can be made. Then the network itself computes every block.
    """

    def __init__(
        self,
        run: RunReader,
        device: torch.device,
        *,
        batch: int = 1,
        make_engine: MakeEngine = compile_engine,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        self.data, self.device, self.batch = run.data, device, batch
        require_whole("batch", batch, 1, max(1, MAX_NUMBERS // math.prod(self.data.image_shape)))
        self.model = run.load_model(device)
        self.table = block_costs(self.model, self.data.image_shape)
        self.mean_C, self.std_C = (torch.tensor(value, device=device) for value in (self.data.mean, self.data.std))
        try:
            # On a CPU, timing all engines takes longer than most folders of images.
            self.engine = make_engine(
                self.model, batch=batch, image_shape=self.data.image_shape, measure=device.type != "cpu"
            )
        except Exception as error:  # from ONNX Runtime, Triton, the GPU's driver, …
            warn(f"No engine could be made, so all blocks are computed, which is slower ({first_line(error)}).")
            self.engine = partial(_masked, self.model)

    def read(self, source: Path | bytes) -> torch.Tensor:
        """Reads an image file, or its bytes, as uint8 (C, H, W) of the network's size; `UserError` if it is none."""
        channels, height, width = self.data.image_shape
        return read_image(source, channels=channels, size=(height, width), crop=self.data.crop)

    def normalise(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Moves uint8 images to the device and normalises them."""
        return normalise(images_BCHW.to(self.device), self.mean_C, self.std_C)

    def route(self, images_BCHW: torch.Tensor, *, threshold: float = 0.5) -> Routing:
        """Routes and classifies normalised images.

        Args:
            images_BCHW: The images, from `normalise`.
            threshold: Run probability from which a block runs.

        Returns:
            Class probabilities, paths and run probabilities. They are not checked for NaN.
        """
        # Callers report NaN and infinity, so numpy, which engines use, need not warn.
        with exact_inference(), np.errstate(all="ignore"):
            output = self.engine(images_BCHW, threshold=threshold)
            parts = output.logits_BK.softmax(dim=1), output.path_BN, run_probability(output.scores_BN2).float()
            return Routing(*(part.cpu() for part in parts))

    def predict_batch(self, images_BCHW: torch.Tensor, *, threshold: float = 0.5) -> list[Prediction]:
        """Predicts uint8 images of the network's size.

        Args:
            images_BCHW: The images, from `read`.
            threshold: Run probability from which a block runs.

        Returns:
            One prediction per image.
        """
        routing = self.route(self.normalise(images_BCHW), threshold=threshold)
        confidence_B, best_B = routing.probability_BK.max(dim=1)
        columns = (
            [self.data.classes[best] for best in best_B.tolist()],
            confidence_B.tolist(),
            routing.path_BN.sum(dim=1).int().tolist(),
            self.table.share(routing.path_BN).tolist(),
            map(tuple, routing.path_BN.int().tolist()),
            map(tuple, routing.run_probability_BN.tolist()),
        )
        return [Prediction(*row) for row in zip(*columns, strict=True)]

    def predict(self, source: Path | bytes, *, threshold: float = 0.5) -> Prediction:
        """Predicts one image.

        Args:
            source: An image file, or its bytes.
            threshold: Run probability from which a block runs.

        Returns:
            The prediction. `UserError` if the source is not an image.
        """
        return self.predict_batch(self.read(source)[None], threshold=threshold)[0]

    def predict_files(
        self, files: Sequence[Path], *, threshold: float = 0.5
    ) -> Iterator[tuple[Path, Prediction | UserError]]:
        """Predicts image files in batches. Threads decode the next images while the network computes.

        Args:
            files: The image files.
            threshold: Run probability from which a block runs.

        Yields:
            Each file in order, with its prediction or the reason why there is none.
        """
        waiting: list[tuple[Path, torch.Tensor | UserError]] = []
        images = 0
        for file, image in self._decoded(files):
            waiting.append((file, image))
            images += isinstance(image, torch.Tensor)
            if images == self.batch:
                yield from self._answered(waiting, threshold)
                waiting, images = [], 0
        yield from self._answered(waiting, threshold)

    def _decoded(self, files: Sequence[Path]) -> Iterator[tuple[Path, torch.Tensor | UserError]]:
        """Each file in order, decoded in threads at most two batches ahead."""
        threads = min(MAX_THREADS, count_cores(), len(files))
        coming = iter(files)
        with DaemonThreadPool(threads) as pool:
            first = islice(coming, 2 * self.batch)
            queue = deque((file, pool.submit(partial(self._read_file, file))) for file in first)
            while queue:
                file, future = queue.popleft()
                (image,) = wait_for([future], f"Reading {file}")
                for following in islice(coming, 1):
                    queue.append((following, pool.submit(partial(self._read_file, following))))
                yield file, image

    def _read_file(self, file: Path) -> torch.Tensor | UserError:
        try:
            if file.is_dir():
                return UserError(f"{file} contains no images; give a folder with images, or image files.")
            return self.read(file)
        except UserError as error:
            return UserError(str(error))  # without the traceback, which keeps the file's content in memory

    def _answered(
        self, waiting: list[tuple[Path, torch.Tensor | UserError]], threshold: float
    ) -> Iterator[tuple[Path, Prediction | UserError]]:
        images = [image for _, image in waiting if isinstance(image, torch.Tensor)]
        predictions: Iterator[Prediction | UserError] = iter(())
        if images:
            try:
                predictions = iter(self.predict_batch(torch.stack(images), threshold=threshold))
            except UserError as error:  # concerns the network, so all images
                predictions = iter([error] * len(images))
        for file, image in waiting:
            answer = image if isinstance(image, UserError) else next(predictions)
            if isinstance(answer, Prediction) and not all(
                map(math.isfinite, (answer.confidence, *answer.run_probability))
            ):
                answer = UserError(
                    f"The network computes NaN or infinity for {file}; restore its weights or train again."
                )
            yield file, answer


def _masked(model: RoutedNetwork, images_BCHW: torch.Tensor, *, threshold: float) -> RoutedOutput:
    """Answers as an engine does, but accepts any weights and computes every block."""
    return model(images_BCHW, decide=partial(hard, threshold=threshold))


def image_files(paths: Iterable[Path]) -> list[Path]:
    """Replaces every folder among the paths by its images, sorted by name. Subfolders are not searched.

    A folder without images stays in the list, so that reading it reports the error.
    """
    found: list[Path] = []
    for path in paths:
        try:
            found += (sorted(filter(is_image_file, path.iterdir())) or [path]) if path.is_dir() else [path]
        except OSError as error:
            raise unreadable(path, error) from error
    return found
