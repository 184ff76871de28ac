"""Attacks on the Python API: wrong types, shapes, dtypes, devices and numbers in every public function."""

import dataclasses
import functools
import random
from pathlib import Path
from typing import Any

import torch
from tests.attack.api_subjects import (
    HAS_ONNX,
    Residual,
    Small,
    SmallResNet,
    adopted,
    ask,
    averaged,
    control,
    engines,
    forward,
    gradients,
    images,
    measured,
    model,
    objective,
    output,
    restore,
    search,
    shift,
    stage,
    static_with,
    step,
    table,
    weigh,
)
from tests.attack.calls import (
    BLOCKS,
    SHAPE,
    Call,
    anything,
    config_resolved,
    costs,
    decisions,
    engine_made,
    evaluated,
    finite,
    hard_decisions,
    network,
    one_number,
    routed,
    table_made,
    threshold_found,
    tried,
)
from tests.attack.harness import Attack

from codinet import (
    CoDiNet,
    CostTable,
    ModelConfig,
    block_costs,
    compile_engine,
    create_model,
    make_dynamic,
)
from codinet.backbones import Architecture, BasicBlock, Bottleneck, ResNet
from codinet.config import ExtraConfig, LossConfig, NetworkConfig, RunConfig, from_dict, to_dict
from codinet.engines import BranchEngine, GatherEngine, MaskedEngine
from codinet.losses import consistency, diversity, expected_cost, score_decay
from codinet.presets import PRESETS, as_static, as_vanilla
from codinet.relaxation import gumbel, hard, margin_limit, run_probability, straight_through
from codinet.resolving import resolve
from codinet.routers import ROUTERS
from codinet.thresholds import mean_cost, threshold_for
from codinet.train import Objective
from codinet.train.stages import decay_scale
from codinet.train.teaching import distillation

SCORES = Call(hard, lambda: {"scores_B2": torch.randn(5, 2), "threshold": 0.5}, hard_decisions)
NOISED = {"scores_B2": 0, "tau": 1.0, "generator": None}

PURE = [
    SCORES,
    Call(hard, lambda: {"scores_B2": torch.randn(2, 3, 2)}, hard_decisions),
    Call(margin_limit, lambda: {"threshold": 0.3}, anything),
    Call(run_probability, lambda: {"scores": torch.randn(4, 2)}, decisions),
    Call(gumbel, lambda: {**NOISED, "scores_B2": torch.randn(5, 2), "generator": torch.Generator()}, decisions),
    Call(straight_through, lambda: {**NOISED, "scores_B2": torch.randn(5, 2)}, decisions),
    Call(consistency, lambda: {"paths_LMN": torch.rand(3, 2, 4), "margin": 0.2}, one_number),
    Call(diversity, lambda: {"paths_LMN": torch.rand(3, 2, 4), "margin": 0.5}, one_number),
    Call(expected_cost, lambda: {"paths_BN": torch.rand(3, 4), "costs_N": torch.rand(4)}, one_number),
    Call(score_decay, lambda: {"scores_BN2": torch.randn(3, 4, 2)}, one_number),
    Call(weigh, lambda: {"terms": list(torch.rand(4)), "alpha": 1.0, "beta": 1, "gamma": torch.rand(())}, one_number),
    Call(
        distillation,
        lambda: {"logits_BK": torch.randn(3, 4), "teacher_BK": torch.randn(3, 4), "temperature": 4.0},
        one_number,
    ),
]

NETWORKS = [
    Call(
        create_model,
        lambda: {
            **{"name": "resnet14", "num_classes": 3, "routed": True, "router": "fc", "in_channels": 1},
            **{"stride_on": "3x3", "pretrained": None, "widths": (3, 16, 5, 32, 7, 64)},
        },
        network,
    ),
    Call(CoDiNet, lambda: {"config": ModelConfig("resnet14", num_classes=2)}, network),
    Call(BasicBlock, lambda: {"in_channels": 4, "width": 8, "stride": 2, "stride_on": "3x3", "inner": 3}, network),
    Call(Bottleneck, lambda: {"in_channels": 4, "width": 2, "stride": 2, "stride_on": "1x1"}, network),
    Call(
        ResNet,
        lambda: {
            "shape": Architecture(BasicBlock, (1, 1), (4, 8), image_size=8, paper_unit=1),
            **{"num_classes": 3, "in_channels": 1, "stride_on": "3x3", "widths": (3, 5)},
        },
        network,
    ),
    *(
        Call(
            functools.partial(shift, kind),
            lambda: {"widths": [4, 6], "amount": 0.5, "k": 1, "features": torch.randn(2, 6, 3, 3)},
            anything,
        )
        for kind in ROUTERS
    ),
    Call(gradients, lambda: {"routers": True, "backbone": False}, anything),
]

FORWARD = [
    Call(forward, lambda: {"images_BCHW": images(), "decide": hard}, routed),
    Call(forward, lambda: {"images_BCHW": images(), "force": torch.ones(BLOCKS)}, routed),
    Call(
        forward,
        lambda: {"images_BCHW": images(2), "force": torch.randint(0, 2, (2, BLOCKS)), "decide": gumbel},
        routed,
    ),
]

COSTS = [
    Call(block_costs, lambda: {"model": model(), "image_shape": SHAPE}, table_made),
    Call(
        CostTable,
        lambda: {
            **{"run_N": (5, 6), "skip_N": (0, 1), "router_N": (1, 1), "fixed": 3},
            **{"image_shape": SHAPE, "paper_unit": 2},
        },
        table_made,
    ),
    Call(lambda path: table().path_macs(path), lambda: {"path": torch.rand(3, BLOCKS)}, costs),
    Call(lambda path: table().share(path), lambda: {"path": torch.randint(0, 2, (3, BLOCKS))}, costs),
    Call(lambda macs: table().paper_gmaccs(macs), lambda: {"macs": 1e9}, finite),
]

THRESHOLDS = [
    Call(
        threshold_for, lambda: {"model": model(), "images_BCHW": images(), "budget": 0.6, "batch": 2}, threshold_found
    ),
    Call(
        mean_cost,
        lambda: {"model": model(), "table": table(), "images_BCHW": images(), "threshold": 0.5, "batch": 3},
        finite,
    ),
    Call(search, lambda: {"cost": 0.7, "budget": 0.5, "steps": 5}, threshold_found),
    Call(measured, lambda: {"images": images(), "labels": torch.tensor([0, 1, 2, 0])}, evaluated),
]

TRAINING = [
    Call(
        Objective,
        lambda: {
            **{"model": model(), "image_shape": SHAPE, "budget": 0.6, "steps": 10},
            **{"losses": LossConfig(alpha=0.5), "label_smoothing": 0.1, "tau": 1.0},
        },
        anything,
    ),
    Call(step, lambda: {"output": output(), "labels": torch.tensor([0, 0, 2, 2]), "views": 2}, anything),
    Call(lambda **words: objective().settle(**words), lambda: {"images_BCHW": images(), "batch": 3}, finite),
    Call(restore, lambda: {"state": objective().state_dict()}, finite),
    Call(
        control,
        lambda: {
            **{"budget": 0.6, "steps": 100, "progress": 0.5, "batch_cost": torch.tensor(0.7), "plain_cost": 0.8},
        },
        one_number,
    ),
    Call(averaged, lambda: {"decay": 0.9}, anything),
    Call(
        stage,
        lambda: {
            **{"name": "joint", "epochs": 5, "lr": 0.1, "schedule": "multistep", "warmup": 1.0},
            **{"milestones": (0.5, 0.8), "epoch": 2.5},
        },
        finite,
    ),
    Call(decay_scale, lambda: {"done": 0.7}, finite),
]

CONFIGS = [
    Call(resolve, lambda: {"config": RunConfig("digits"), "gpu": False}, config_resolved),
    Call(
        resolve,
        lambda: {"config": dataclasses.replace(PRESETS["quick"]("digits"), extra=ExtraConfig(teacher="t", ema=0.9))},
        config_resolved,
    ),
    Call(resolve, lambda: {"config": RunConfig("digits", network=NetworkConfig(arch="resnet50"))}, config_resolved),
    Call(
        resolve,
        lambda: {"config": RunConfig("digits", network=NetworkConfig("resnet14", widths=(3, 16, 5, 32, 7, 64)))},
        config_resolved,
    ),
    Call(lambda values: resolve(from_dict(values)), lambda: {"values": to_dict(RunConfig("digits"))}, config_resolved),
    Call(lambda config: resolve(as_static(config)), lambda: {"config": RunConfig("digits")}, config_resolved),
    Call(lambda config: resolve(as_vanilla(config)), lambda: {"config": RunConfig("digits")}, config_resolved),
]

ADOPTING = [
    Call(adopted, lambda: {"blocks": Residual, "router": "fc", "image_shape": SHAPE}, network),
    Call(adopted, lambda: {"blocks": ["blocks.0", "blocks.1"], "image_shape": (1, 8, 12)}, network),
    Call(make_dynamic, lambda: {"module": Small(), "blocks": "blocks.*", "image_shape": SHAPE}, network),
    Call(make_dynamic, lambda: {"module": SmallResNet(), "router": "rnn"}, network),
]

MAKING = [
    *(Call(kind, lambda: {"model": model(), "threshold": 0.5}, engine_made) for kind in (MaskedEngine, BranchEngine)),
    Call(GatherEngine, lambda: {"model": model(), "threshold": 0.5}, engine_made),
    Call(static_with, lambda: {"path": torch.ones(BLOCKS)}, engine_made),
]


def asking() -> list[Call]:
    """A call of every engine, with a path where it takes one."""
    return [
        Call(functools.partial(ask, name), asked_freely if engine.spec.blocks is None else asked_by_force, routed)
        for name, engine in engines().items()
    ]


def asked_freely() -> dict[str, Any]:
    return {"images": images(), "threshold": 0.5}


def asked_by_force() -> dict[str, Any]:
    return {**asked_freely(), "force": torch.ones(BLOCKS)}


def ask_engines(rng: random.Random, folder: Path) -> None:
    tried(asking())(rng, folder)


def compile_engines(rng: random.Random, folder: Path) -> None:
    call = Call(
        compile_engine,
        lambda: {
            **{"model": model(), "device": "cpu", "batch": 2, "threshold": 0.5, "images": images(2)},
            **{"image_shape": None, "dtype": torch.float32},
        },
        engine_made,
    )
    tried([call])(rng, folder)


def export_networks(rng: random.Random, folder: Path) -> None:
    if not HAS_ONNX:
        return
    from codinet.engines.onnx import ExportInfo, export

    call = Call(
        export,
        lambda: {
            **{"model": model(), "out": folder / "m.onnx", "data": ExportInfo(("a", "b", "c"), (1.0,), (2.0,), SHAPE)},
            **{"kind": "static", "path": [1] * BLOCKS, "threshold": 0.5, "opset": 17, "images_BCHW": images(1)},
        },
        finite,
    )
    tried([call])(rng, folder)


ATTACKS: list[Attack] = [
    Attack("api: relaxations and losses", tried(PURE), quick=300, weight=3.0),
    Attack("api: networks, blocks and routers", tried(NETWORKS), quick=60, weight=2.0),
    Attack("api: forward passes", tried(FORWARD), quick=60, weight=2.0),
    Attack("api: cost tables", tried(COSTS), quick=60, weight=2.0),
    Attack("api: thresholds and evaluations", tried(THRESHOLDS), quick=40),
    Attack("api: objectives, controllers and stages", tried(TRAINING), quick=60, weight=2.0),
    Attack("api: configs", tried(CONFIGS), quick=200, weight=2.0),
    Attack("api: adopted networks", tried(ADOPTING), quick=30, weight=0.5),
    Attack("api: making engines", tried(MAKING), quick=40, weight=0.5),
    Attack("api: asking engines", ask_engines, quick=100, weight=2.0),
    Attack("api: compiling engines", compile_engines, quick=8, weight=0.1),
    Attack("api: exports", export_networks, quick=8, weight=0.1),
]
