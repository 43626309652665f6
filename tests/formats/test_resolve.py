"""From what a user writes to files: path, catalogue, hub; the hub's client is a stand-in here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo.formats.errors import ModelNotFoundError
from octavo.formats.model_files import ModelFiles
from octavo.formats.resolve import resolve, resolve_dataset


class FakeHub:
    """huggingface_hub with one repository, in a folder; `online` False: no network."""

    def __init__(self, folder: Path, names: list[str], online: bool = True, cached: bool = False) -> None:
        self.folder, self.names, self.online, self.cached = folder, names, online, cached
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("x")

    def HfApi(self) -> FakeHub:
        return self

    def model_info(self, repo: str, timeout: float) -> SimpleNamespace:
        if not self.online:
            raise ConnectionError("[Errno -2] Name or service not known")
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in self.names])

    def hf_hub_download(self, repo: str, name: str) -> str:
        if name not in self.names:
            raise ValueError(f"404: no {name}")
        return str(self.folder / name)

    def snapshot_download(self, repo: str, allow_patterns: object = None, local_files_only: bool = False) -> str:
        if local_files_only and not self.cached:
            raise ValueError("not cached")
        return str(self.folder)


def use(monkeypatch: pytest.MonkeyPatch, hub: FakeHub) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def test_paths_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").write_text("x")
    assert resolve("model.gguf") == ModelFiles("gguf", Path("model.gguf"), "model")
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    with pytest.raises(ModelNotFoundError, match=r"org/name is a folder without config\.json"):
        resolve("org/name")
    (folder / "config.json").write_text("{}")
    assert resolve("org/name") == ModelFiles("safetensors", Path("org/name"), "name")
    assert resolve(str(folder)).folder == folder


def test_catalogue_name(default_model: ModelFiles) -> None:
    assert (default_model.kind, default_model.name) == ("gguf", "smollm2-135m-instruct")
    assert resolve("SMOLLM2-135M-instruct") == default_model


def test_unknown_names() -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"'nonsense' is neither a path here nor .*smollm2-135m-instruct.*hub id"
    ):
        resolve("nonsense")
    with pytest.raises(ModelNotFoundError, match=r"There is no file \.\./\.\./etc/nothing"):
        resolve("../../etc/nothing")
    with pytest.raises(ModelNotFoundError, match="name is empty"):
        resolve(" ")
    with pytest.raises(ModelNotFoundError, match=r"'nonsense' is neither .* \(sharegpt\)"):
        resolve_dataset("nonsense")


@pytest.mark.parametrize(
    "name",
    [
        "./smollm.gguf",
        "~/none/smollm.gguf",
        "/none",
        "smollm.GGUF",
        "models/s.gguf",
        "here/models/s.gguf",
        "m.safetensors",
    ],
)
def test_what_is_written_like_a_path_is_not_asked_of_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # importing it fails
    with pytest.raises(ModelNotFoundError, match=f"There is no file {name} "):
        resolve(name)


def test_a_weights_file_of_a_folder_says_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("x")
    with pytest.raises(ModelNotFoundError, match="name the folder that holds it"):
        resolve(str(tmp_path / "model.safetensors"))


def test_dataset_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("[]")
    assert resolve_dataset(str(path)) == path


def test_hub_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeHub(tmp_path, ["config.json", "model.safetensors", "extra.gguf"]))
    assert resolve("org/name") == ModelFiles("safetensors", tmp_path, "org/name")


def test_hub_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeHub(tmp_path, ["README.md", "only.gguf"]))
    assert resolve("org/name") == ModelFiles("gguf", tmp_path / "only.gguf", "org/name")
    use(monkeypatch, FakeHub(tmp_path, ["a.gguf", "q/b.gguf"]))
    assert resolve("org/name/q/b.gguf") == ModelFiles("gguf", tmp_path / "q/b.gguf", "org/name/q/b.gguf")
    with pytest.raises(
        ModelNotFoundError, match=r"holds 2 GGUF files; name one as org/name/FILE, .*: a\.gguf, q/b\.gguf"
    ):
        resolve("org/name")
    with pytest.raises(ModelNotFoundError, match=r"org/name/c\.gguf could not be fetched from the hub: 404"):
        resolve("org/name/c.gguf")
    use(monkeypatch, FakeHub(tmp_path, ["pytorch_model.bin"]))
    with pytest.raises(ModelNotFoundError, match="neither safetensors nor GGUF"):
        resolve("org/name")


def test_hub_quantisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["m-Q4_0.gguf", "m-q8_0.gguf", "m-IQ4_0.gguf", "m-Q4_0_4_4.gguf", "m.safetensors"]
    use(monkeypatch, FakeHub(tmp_path, names))
    assert resolve("org/name:Q4_0") == ModelFiles("gguf", tmp_path / "m-Q4_0.gguf", "org/name:Q4_0")
    assert resolve("org/name:Q8_0").path == tmp_path / "m-q8_0.gguf"
    with pytest.raises(
        ModelNotFoundError, match=r"holds no GGUF files with Q5_K in their names; name one .*m-Q4_0\.gguf"
    ):
        resolve("org/name:Q5_K")
    use(monkeypatch, FakeHub(tmp_path, names, online=False, cached=True))
    assert resolve("org/name:q4_0").path == tmp_path / "m-Q4_0.gguf"


def test_hub_split_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files of a split model are fetched, and count as one."""
    parts = [f"q/m-Q4_K_M-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    hub = FakeHub(tmp_path, [*parts, "m-Q8_0.gguf"])
    fetched: list[str] = []
    download = hub.hf_hub_download
    monkeypatch.setattr(hub, "hf_hub_download", lambda repo, name: fetched.append(name) or download(repo, name))
    use(monkeypatch, hub)
    assert resolve("org/name:Q4_K_M").path == tmp_path / parts[0]
    assert fetched == parts


def test_hub_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeHub(tmp_path, ["only.gguf"], online=False))
    with pytest.raises(ModelNotFoundError, match=r"fetched from the hub: .*Name or service not known.*network"):
        resolve("org/name")
    use(monkeypatch, FakeHub(tmp_path, ["only.gguf"], online=False, cached=True))
    assert resolve("org/name").path == tmp_path / "only.gguf"
    assert resolve("org/name/only.gguf").path == tmp_path / "only.gguf"
    with pytest.raises(ModelNotFoundError, match="Name or service not known"):
        resolve("org/name/other.gguf")
    use(monkeypatch, FakeHub(tmp_path, ["m.safetensors"], online=False, cached=True))
    assert resolve("org/name").kind == "safetensors"
