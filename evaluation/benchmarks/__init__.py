"""Benchmarks turn published files into questions. Each knows what its letters mean and where its evidence lies."""

from medagent.evaluation.benchmarks.base import Benchmark, FileBenchmark
from medagent.evaluation.benchmarks.bioasq import BioASQBenchmark, bioasq_passages
from medagent.evaluation.benchmarks.custom import JsonlBenchmark, OpenQABenchmark, StarterBenchmark
from medagent.evaluation.benchmarks.multiple_choice import (
    MedMCQABenchmark,
    MedQABenchmark,
    MedXpertQABenchmark,
    MMLUBenchmark,
)
from medagent.evaluation.benchmarks.yes_no_maybe import PubMedQABenchmark, pubmedqa_passages

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
