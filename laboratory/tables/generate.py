"""Write the measured tables of the documentation from committed rows."""

from pathlib import Path

from figure_pictures import pictures as figure_pictures
from measurement_tables import tables as measurement_tables
from scaling_tables import tables as scaling_tables
from score_tables import tables as score_tables
from speed_tables import tables as speed_tables
from study_tables import tables as study_tables
from text_tables import pictures as text_pictures
from text_tables import tables as text_tables

FOLDER = Path(__file__).parents[2] / "docs" / "generated"


def tables() -> dict[str, str]:
    """Return the Markdown of every table by the name of its file."""
    return {
        **measurement_tables(),
        **scaling_tables(),
        **score_tables(),
        **speed_tables(),
        **study_tables(),
        **text_tables(),
    }


if __name__ == "__main__":
    for name, text in tables().items():
        (FOLDER / f"{name}.md").write_text(text)
    for name, picture in {**figure_pictures(), **text_pictures()}.items():
        (FOLDER.parent / "images" / f"{name}.png").write_bytes(picture)
