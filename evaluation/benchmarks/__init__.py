"""Benchmarks turn published files into questions. Each knows what its letters mean and where its evidence lies."""

from medagent.evaluation.benchmarks.base import Benchmark, FileBenchmark
from medagent.evaluation.benchmarks.custom import JsonlBenchmark, OpenQABenchmark, StarterBenchmark
from medagent.evaluation.benchmarks.literature import (
    BioASQBenchmark,
    PubMedQABenchmark,
    bioasq_passages,
    pubmedqa_passages,
)
from medagent.evaluation.benchmarks.multiple_choice import (
    MedMCQABenchmark,
    MedQABenchmark,
    MedXpertQABenchmark,
    MMLUBenchmark,
)

__all__ = [
    "Benchmark",
    "BioASQBenchmark",
    "FileBenchmark",
    "JsonlBenchmark",
    "MMLUBenchmark",
    "MedMCQABenchmark",
    "MedQABenchmark",
    "MedXpertQABenchmark",
    "OpenQABenchmark",
    "PubMedQABenchmark",
    "StarterBenchmark",
    "bioasq_passages",
    "pubmedqa_passages",
]
