"""What the page is told of a run before it asks about an image. Names no place on the disk."""

from pathlib import Path
from typing import Any

from codinet.errors import UserError
from codinet.explorer.gallery import Gallery
from codinet.explorer.limits import Limits
from codinet.explorer.maps import Maps
from codinet.explorer.views import VIEWS
from codinet.predict import Predictor
from codinet.runs import RunFolder

_FIGURES = ("accuracy", "cost_share", "mean_blocks", "distinct_paths", "n")


def overview(
    run: RunFolder, predictor: Predictor, gallery: Gallery | None, maps: Maps | None, limits: Limits
) -> dict[str, Any]:
    table = predictor.table
    return {
        "network": run.config.network.arch,
        "routed": predictor.model.routers is not None,
        # A folder's or a file's own name; where it lies stays here.
        "data": Path(run.data.name).name,
        "classes": run.data.classes,
        "image_shape": run.data.image_shape,
        "version": run.data.sha256[:12],
        "stages": predictor.model.shape.counts,
        "block_share": [added / table.static_macs for added in table.added_N],
        "static_macs": table.static_macs,
        "evaluation": _evaluation(run),
        "images": len(gallery) if gallery is not None else 0,
        "views": [{"name": name, "title": view.title, "drawn": view.drawn} for name, view in VIEWS.items()],
        "maps": [] if maps is None else maps.kinds,
        "limits": {"bytes": limits.upload_bytes, "pixels": limits.upload_pixels},
    }


def _evaluation(run: RunFolder) -> dict[str, Any] | None:
    try:
        figures = run.load_evaluation()
        return {name: figures[name] for name in _FIGURES}
    except (UserError, KeyError, TypeError):
        return None
