"""`octavo quantize MODEL TO`: a model as a GGUF file with its matrices in fewer bits, and what that costs."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.pull import pull_dataset
from octavo.formats.progress_bar import Bar, rounded_size
from octavo.formats.requantize import MIXES, GgufSource, Report, Source, requantize

if TYPE_CHECKING:
    from octavo.formats.model_files import ModelFiles

_SCORED_TOKENS = 20_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="GGUF file, folder of safetensors, catalogue name or hub id")
    parser.add_argument("to", type=Path, metavar="TO", help="the GGUF file to write")
    parser.add_argument(
        "--mix",
        choices=MIXES,
        default="Q4_K_M",
        help="Q8_0 for all matrices; Q4_0, with the head in Q6_K; or Q4_K_M: most in Q4_K, the head and half of v and "
        "down in Q6_K, and Q5_0 and Q8_0 where a width does not divide by 256 (default: %(default)s)",
    )
    parser.add_argument(
        "--text",
        metavar="FILE",
        help="measure the perplexity of both models on this text, or on the catalogue's data set sharegpt",
    )
    parser.add_argument("--tokens", type=int, default=_SCORED_TOKENS, metavar="N", help="how many tokens of the text")
    parser.add_argument("--again", action="store_true", help="also round what the model has quantised already")
    parser.add_argument("--force", action="store_true", help="write over TO if it exists")


def run(arguments: argparse.Namespace) -> int:
    from octavo.formats.gguf_split import part_of, part_paths
    from octavo.formats.resolve import resolve
    from octavo.text.gguf_export import check_same_tokens

    _check(arguments)
    if arguments.text == "sharegpt":
        pull_dataset(arguments.text)
    with Bar() as bar:
        files = resolve(arguments.model, bar.show)
        paths = part_paths(files.path) if part_of(files.path) else [files.path]
        if arguments.to.exists() and any(path.exists() and arguments.to.samefile(path) for path in paths):
            raise ValueError(f"{arguments.to} is the model itself; name another file.")
        source = _source(files)
        check = partial(check_same_tokens, files) if files.kind == "safetensors" else None
        report = requantize(source, arguments.to, arguments.mix, arguments.again, bar.show, check)
    print(table(report))
    print(f"{arguments.to}: {rounded_size(arguments.to.stat().st_size)}, from {rounded_size(report.source_nbytes)}")
    if arguments.text is None:
        print("perplexity: not measured; --text FILE (or --text sharegpt) measures it before and after")
    else:
        print(_perplexity(str(files.path), str(arguments.to), arguments.text, arguments.tokens))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise ValueError for what would end badly after minutes of work."""
    target: Path = arguments.to
    if target.is_dir():
        raise ValueError(f"{target} is a folder; name the file to write.")
    if target.exists() and not arguments.force:
        raise ValueError(f"{target} exists; name another file, or write over it with --force.")
    if target.suffix != ".gguf":
        raise ValueError(f"{target} does not end with .gguf, by which it would be known; name it {target.name}.gguf.")
    if not target.parent.is_dir():
        raise ValueError(f"there is no folder {target.parent} to write {target.name} into.")
    if arguments.tokens < 2:
        raise ValueError(f"--tokens is {arguments.tokens}; it must be at least 2.")
    if arguments.text not in (None, "sharegpt") and not Path(arguments.text).is_file():
        raise ValueError(f"--text: there is no file {arguments.text}; name a text file, or the data set sharegpt.")


def _source(files: ModelFiles) -> Source:
    if files.kind == "gguf":
        from octavo.formats.gguf import GgufFile

        return GgufSource(GgufFile.open(files.path))
    from octavo.models.gguf_draft import draft_gguf
    from octavo.text.gguf_export import tokenizer_metadata

    draft = draft_gguf(files)
    draft.metadata["general.name"] = files.name
    draft.metadata.update(tokenizer_metadata(files, draft.vocab))
    return draft


def _perplexity(before: str, after: str, text: str, count: int) -> str:
    """Of both models on the same tokens, as they are served, and how much worse the second is."""
    from octavo.bench.perplexity import dataset_tokens, perplexity, text_tokens
    from octavo.config import EngineConfig

    tokens = dataset_tokens(before, count) if text == "sharegpt" else text_tokens(before, Path(text), count)
    found = []
    for model in (before, after):
        shown = Path(model).name

        def show(done: int, total: int, so_far: float, shown: str = shown) -> None:
            print(f"\r{shown}: {done} of {total} tokens, perplexity {so_far:.3f}", end="", file=sys.stderr, flush=True)

        found.append(perplexity(EngineConfig(model=model), tokens, show))
        print(file=sys.stderr)
    change = found[1] / found[0] - 1
    return f"perplexity on {len(tokens)} tokens: {found[0]:.3f} before, {found[1]:.3f} after ({change:+.2%})"


def table(report: Report) -> str:
    """What became of the tensors, by format."""
    lines = [f"{'FORMAT':<8}{'TENSORS':>8}{'SIZE':>12}  RELATIVE ERROR"]
    for type_, found in report.formats.items():
        error = f"{found.error:.2%}" if found.squared else "as it was"
        lines.append(f"{type_.name:<8}{found.tensors:>8}{rounded_size(found.nbytes):>12}  {error}")
    return "\n".join(lines)
