from codinet.config import RunConfig
from codinet.presets import best
from codinet.sweep.common import Common


def test_values_find_their_part_of_the_config_and_those_left_out_are_the_recipes() -> None:
    config = Common(epochs=3, image_size=16, holdout=5, watch="train").put_into(best("digits"))
    assert (config.data.image_size, config.data.holdout, config.data.watch) == (16, 5, "train")
    assert (config.schedule.epochs, config.schedule.finetune) == (3, best("digits").schedule.finetune)
    assert Common().put_into(config) == config
    assert Common(holdout=0, watch="test", image_size=16).put_into(RunConfig("x")).data.holdout == 0
