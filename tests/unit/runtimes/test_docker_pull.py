"""How far a pull is."""

from codehub.domain.observation import Progress
from codehub.runtimes.docker.pull import Layers


def test_progress_adds_up_over_the_layers() -> None:
    layers = Layers()
    assert layers.progress == Progress(0, None)
    layers.note({"status": "Pulling fs layer", "progressDetail": {}, "id": "a"})
    layers.note({"status": "Downloading", "progressDetail": {"current": 10, "total": 100}, "id": "a"})
    layers.note({"status": "Downloading", "progressDetail": {"current": 5, "total": 50}, "id": "b"})
    assert layers.progress == Progress(15, 150)
    layers.note({"status": "Download complete", "progressDetail": {}, "id": "a"})
    layers.note({"status": "Extracting", "progressDetail": {"current": 3, "total": 100}, "id": "a"})
    assert layers.progress == Progress(105, 150)
    layers.note({"status": "Already exists", "progressDetail": {}, "id": "c"})
    layers.note({"status": "Digest: sha256:1234"})
    assert layers.progress == Progress(105, 150)
