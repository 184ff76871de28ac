"""Every code block of the documentation is executed; see `pages` for the languages and `shell` for commands."""

import ast
import builtins
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.docs.pages import RECORDS, ROOT, WRITTEN_BY, Block, blocks_in, blocks_of, commands, dialogue, pages, words_of
from tests.docs.shell import INSTEAD as WORDS_INSTEAD
from tests.docs.shell import Shell, resolved
from tests.hub_server import UPLOAD_WARNING

from codinet.adopt import import_vision
from codinet.errors import UserError

# Parts of Python code, and what stands for them here: weights that would be downloaded, and long computations.
INSTEAD = {
    'weights="DEFAULT"': "weights=None",
    "pretrained=True": "pretrained=False",
    '"convnext_tiny"': '"convnext_atto"',
    'presets.quick("digits")': 'short(presets.quick("few.npz"))',
    "budget=(0.4, 0.6), seed=(0, 1)": "budget=(0.6,), seed=(0,)",
}
Given = dict[str, Callable[[dict[str, Any]], Any]]


@pytest.fixture
def namespace(shell: Shell) -> dict[str, Any]:
    """The namespace that the Python blocks of a page share."""

    def short(config: Any) -> Any:
        return replace(config, schedule=replace(config.schedule, epochs=1, finetune=0, batch=16))

    return {"__name__": "__main__", "short": short}


@pytest.mark.filterwarnings(UPLOAD_WARNING)
@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("page", [page for page in pages() if page not in (*WRITTEN_BY, RECORDS)])
def test_the_code_of_a_page_runs(
    page: str, shell: Shell, namespace: dict[str, Any], given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = blocks_of(page)
    for block in blocks:
        if block.language == "yaml":
            file = block.text.splitlines()[0].removeprefix("# ")
            assert file.endswith(".yaml"), f"{block.where} must begin with the name of the file as a comment"
            Path(file).write_text(block.text)
            resolved(["train", "--config", file])
            smaller = {key: WORDS_INSTEAD.get(value, value) for key, value in yaml.safe_load(block.text).items()}
            Path(file).write_text(yaml.safe_dump(smaller))
    for block in blocks:
        try:
            run_block(block, shell, namespace, given, monkeypatch)
        except UserError as error:
            raise AssertionError(f"{block.where}: {error}") from error


def run_block(
    block: Block, shell: Shell, namespace: dict[str, Any], given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block.language == "bash":
        for line in commands(block.text):
            shell.run(line)
    elif block.language == "console":
        for line, output in dialogue(block.text):
            shell.run(line)
            found = [without_numbers(one) for one in shell.output.splitlines()]
            assert [one for one in output if without_numbers(one) not in found] == []
    elif block.language == "python":
        run_python(block, namespace, given, monkeypatch)


def without_numbers(line: str) -> str:
    return re.sub(r"\d+", "0", line).rstrip()


def run_python(block: Block, namespace: dict[str, Any], given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    code = block.text
    for text, other in INSTEAD.items():
        code = code.replace(text, other)
    if re.search(r"^import (timm|torchvision)", code, re.MULTILINE):
        try:
            import_vision("timm"), import_vision("torchvision")
        except UserError as error:
            pytest.skip(str(error))
    if "sys.argv" in code:
        (line,) = re.findall(r"`python (\S+\.py [^`]*)`", (ROOT / block.page).read_text())
        monkeypatch.setattr(sys, "argv", line.split())
    names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    own = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | set(namespace) | set(vars(builtins))
    for name in {node.id for node in names} - own:
        if name in given:
            namespace[name] = given[name](namespace)
    exec(compile(code, block.where, "exec"), namespace)


def test_the_commands_of_the_records_can_be_repeated() -> None:
    """One of each form is parsed up to the config; parsing takes a while, and training takes hours."""
    lines = {line for block in blocks_of(RECORDS) for line in commands(block.text)}
    forms = {re.sub(r"[0-9a-f]{64}|[\d.]+", "0", line): line for line in sorted(lines)}
    assert len(forms) > 20
    for line in forms.values():
        program, *words = words_of(line)
        assert (program, words[0]) == ("codinet", "train")
        resolved(words)


@pytest.mark.parametrize("page", WRITTEN_BY)
def test_a_page_that_a_program_writes_says_so(page: str) -> None:
    if (ROOT / page).exists():
        assert (ROOT / WRITTEN_BY[page]).exists()
        assert WRITTEN_BY[page] in (ROOT / page).read_text()


def test_every_replacement_is_needed() -> None:
    code = "".join(block.text for page in pages() if page not in WRITTEN_BY for block in blocks_of(page))
    assert [text for text in (*INSTEAD, *WORDS_INSTEAD) if text not in code] == []


@pytest.mark.parametrize("fence", ["```", "```sh", "```bash title"])
def test_a_block_in_another_language_is_refused(fence: str) -> None:
    with pytest.raises(ValueError, match=r"page:1 has a block in .*; use one of bash, python"):
        blocks_in(f"{fence}\ncodinet models\n```\n", "page")


@pytest.mark.parametrize(
    "line",
    [
        "docker run codinet",
        "codinet train cifar10 --epoch 3",
        "codinet train cifar10 --budget 2",
        "codinet sweep cifar10 --arch resnet9",
        "codinet eval nowhere",
        "codinet models > no/such/folder",
        "make demos",
        "pip install '.[plots]'",
        "pip install codinet",
        "python -m tools.absent",
        "python -m tools.zoo_add RUN --nam x",
        "torchrun --nproc 2 -m codinet train cifar10 --bugdet 1",
        "source venv/bin/activate",
        "codinet models && make nothing",
    ],
)
def test_a_wrong_command_is_found(line: str, shell: Shell) -> None:
    with pytest.raises((AssertionError, UserError, OSError, SystemExit)):
        shell.run(line)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("console", "$ codinet models\nwhat it does not print\n"),
        ("console", "what no command printed\n"),
        ("python", "print(a_name_that_nobody_defines)\n"),
        ("bash", "codinet predict RUN \\\n    absent.jpg\n"),
    ],
)
def test_a_wrong_block_is_found(
    language: str,
    text: str,
    shell: Shell,
    namespace: dict[str, Any],
    given: Given,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises((AssertionError, ValueError, NameError)):
        run_block(Block("page", 1, language, text), shell, namespace, given, monkeypatch)
