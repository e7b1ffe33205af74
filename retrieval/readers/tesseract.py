"""Text recognition (OCR) by the program Tesseract."""

import csv
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from medagent.retrieval.errors import CorpusError

PROGRAM = "tesseract"
LONGEST = 300  # seconds for a page


@dataclass
class Tesseract:
    """Recognizes pages in `languages`, such as "deu+eng"; `progress` hears of each as a stage does."""

    languages: str
    progress: Callable[[str, int, int, int], None]
    pages: int = field(default=0, init=False)

    def check(self) -> None:
        """A `CorpusError` where the program or a language is missing."""
        if shutil.which(PROGRAM) is None:
            raise CorpusError(
                f"--ocr {self.languages}: the program {PROGRAM} was not found. Install it, on Debian and Ubuntu with: "
                "apt-get install tesseract-ocr"
            )
        listed = subprocess.run([PROGRAM, "--list-langs"], capture_output=True, text=True, check=False)  # noqa: S603
        _, *known = listed.stdout.splitlines() or [""]
        if missing := [each for each in self.languages.split("+") if each not in known]:
            raise CorpusError(
                f"--ocr {self.languages}: found {', '.join(missing)}, wanted languages that Tesseract has, joined by "
                f"+: {', '.join(known)}. Install others, on Debian and Ubuntu as tesseract-ocr-deu."
            )

    def read(self, image: NDArray[np.uint8], dpi: int) -> list[dict[str, str]]:
        """The rows of Tesseract's TSV for a gray image [H, W]; a `SubprocessError` where it fails."""
        self.progress("text recognition", self.pages, 0, 0)
        command = [PROGRAM, "stdin", "stdout", "-l", self.languages, "--dpi", str(dpi), "tsv"]
        picture = b"P5 %d %d 255\n" % image.shape[1::-1] + image.tobytes()
        done = subprocess.run(command, input=picture, capture_output=True, check=True, timeout=LONGEST)  # noqa: S603
        self.pages += 1
        self.progress("text recognition", self.pages, 0, 0)
        rows = done.stdout.decode("utf-8", "replace").splitlines()
        return list(csv.DictReader(rows, delimiter="\t", quoting=csv.QUOTE_NONE))
